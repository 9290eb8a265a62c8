"""The engine on a GPU: paged KV and weights in bf16 on the device, FlashInfer's attention, graphs for rows that decode.

Never decides what runs. All of it but the kernels also runs on the CPU, where the tests hold it against the reference;
`choice` says what a machine has and why not more.
"""

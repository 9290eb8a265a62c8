"""What a harness asks before it counts tokens over HTTP, in the order and form of lm-eval's remote tokenizer."""

from http_rig import served

from system_rig import byte_system, in_loop


def test_a_remote_tokenizer_finds_its_marks_and_a_text_comes_back() -> None:
    async def scenario() -> None:
        async with byte_system() as system, served(system) as client:
            info = system.text.info
            found = (await client.http.get("/tokenizer_info")).json()
            controls = {token: text for text, token in system.text.tokenizer.controls.items()}
            assert info.bos_id is not None
            assert found == {
                "tokenizer_class": "Loopwright",
                "model_max_length": info.max_context,
                "vocab_size": info.vocab_size,
                "bos_token": controls[info.bos_id],
                "eos_token": controls[info.eos_ids[0]],
                "pad_token": None,
                "chat_template": None,
            }
            named = await client.http.get("/tokenizer_info", params={"model": info.name})
            assert named.json() == found
            asked = {"prompt": "Zürich, 水", "add_special_tokens": False}
            tokens = (await client.http.post("/tokenize", json=asked)).json()["tokens"]
            assert (await client.http.post("/detokenize", json={"tokens": tokens})).json()["prompt"] == asked["prompt"]
            none = await client.http.get("/tokenizer_info?model=none")
            assert (none.status_code, none.json()["error"]["param"]) == (404, "model")

    in_loop(scenario)

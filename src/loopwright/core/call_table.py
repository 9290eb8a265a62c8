"""What holds for every call of one kind: its traits, who answers it, what it completes with. Never executes one.

Read by control and the runtime, which refuse what a model cannot do, and by the reference in docs/calls.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from loopwright.core import (
    calls,
    child_calls,
    code_calls,
    host_calls,
    message_calls,
    outside_calls,
    results,
    store_calls,
    watch_calls,
)
from loopwright.core.call_base import Call, HostCall
from loopwright.core.errors import ModelLacksTrait
from loopwright.core.model_info import ModelInfo
from loopwright.core.traits import Trait

Answerer: TypeAlias = Literal["runtime", "control", "inference"]
"""runtime: at once, or by a task beside the model. control: without the engine, at once or when the call's turn comes.
inference: in a batch on the engine."""


@dataclass(frozen=True, slots=True)
class CallKind:
    """`completes_with` is a type of core.results or of the runtime's answers, or the fields of a JSON object."""

    answered_by: Answerer
    completes_with: type[results.Result] | str
    traits: tuple[Trait, ...] = ()  # () is core: every model has it


CALL_KINDS: Final[Mapping[type, CallKind]] = {
    host_calls.Describe: CallKind(
        "runtime", "{run, version, seed, model, arguments?, prompt_template?, parent?, tool_format?}"
    ),
    host_calls.Models: CallKind("runtime", "{models}"),
    calls.DebugQuery: CallKind("control", results.DebugInfo),
    calls.CreateQueue: CallKind("control", results.Done),
    calls.SetPriority: CallKind("control", results.Done),
    calls.Synchronize: CallKind("control", results.Done),
    calls.ClearQueue: CallKind("control", results.Done),
    calls.AllocatePages: CallKind("control", results.Done, ("allocate",)),
    calls.FreePages: CallKind("control", results.Done, ("allocate",)),
    calls.SharePages: CallKind("control", results.Done, ("allocate",)),
    calls.MaskPage: CallKind("control", results.Done, ("allocate",)),
    calls.CopyPage: CallKind("inference", results.Done, ("allocate",)),
    calls.ExportPages: CallKind("control", results.Done, ("allocate",)),
    calls.UnexportPages: CallKind("control", results.Done, ("allocate",)),
    calls.ImportPages: CallKind("control", results.Imported, ("allocate",)),
    calls.ExportedPages: CallKind("control", results.ExportList, ("allocate",)),
    calls.AllocateEmbeds: CallKind("control", results.Done, ("allocate",)),
    calls.FreeEmbeds: CallKind("control", results.Done, ("allocate",)),
    calls.Forward: CallKind("inference", results.Forwarded, ("forward",)),
    calls.ShiftKv: CallKind("inference", results.Done, ("forward",)),
    host_calls.Adapters: CallKind("runtime", "{adapters}", ("adapter",)),
    calls.ForwardWithAdapter: CallKind("inference", results.Forwarded, ("adapter",)),
    calls.EmbedText: CallKind("inference", results.Done, ("input_text",)),
    calls.EmbedImage: CallKind("inference", results.Done, ("input_image",)),
    host_calls.EmbedsNeeded: CallKind("runtime", "{num_embeds}", ("input_image",)),
    calls.NextDistribution: CallKind("inference", results.Forwarded, ("output_text",)),
    calls.Sample: CallKind("inference", results.Forwarded, ("output_text",)),
    calls.ForwardText: CallKind("inference", results.Forwarded, ("input_text", "output_text")),
    calls.Generate: CallKind("inference", results.Segment, ("input_text", "output_text")),
    watch_calls.Acknowledge: CallKind("control", results.Done, ("input_text", "output_text")),
    watch_calls.Veto: CallKind("control", results.Done, ("input_text", "output_text")),
    host_calls.Segment: CallKind("inference", "Segment and {text}", ("tokenize", "output_text")),
    host_calls.Tokenize: CallKind("runtime", "{tokens}", ("tokenize",)),
    host_calls.Detokenize: CallKind("runtime", "{text}, and {pieces} if asked", ("tokenize",)),
    host_calls.RenderChat: CallKind("runtime", "{tokens}", ("tokenize",)),
    host_calls.Vocabulary: CallKind("runtime", "{bytes, lengths}", ("tokenize",)),
    outside_calls.HttpRequest: CallKind("runtime", "{status, headers, url, body}"),
    outside_calls.HttpOpen: CallKind("runtime", "{stream, status, headers, url}"),
    outside_calls.HttpRead: CallKind("runtime", "{body, is_end}"),
    outside_calls.HttpClose: CallKind("runtime", results.Done),
    outside_calls.ListTools: CallKind("runtime", "{tools}"),
    outside_calls.CallTool: CallKind("runtime", "{result}"),
    message_calls.Broadcast: CallKind("runtime", "{num_subscribers}"),
    message_calls.Subscribe: CallKind("runtime", results.Done),
    message_calls.NextMessages: CallKind("runtime", "{first, messages}"),
    message_calls.Unsubscribe: CallKind("runtime", results.Done),
    message_calls.Push: CallKind("runtime", results.Done),
    message_calls.Pull: CallKind("runtime", "{value}"),
    message_calls.Settle: CallKind("runtime", results.Done),
    message_calls.Receive: CallKind("runtime", "{message}"),
    store_calls.StoreGet: CallKind("runtime", "{value}"),
    store_calls.StoreSet: CallKind("runtime", results.Done),
    store_calls.StoreDelete: CallKind("runtime", "{existed}"),
    store_calls.StoreExists: CallKind("runtime", "{exists}"),
    store_calls.StoreKeys: CallKind("runtime", "{keys}"),
    store_calls.StoreCompareAndSet: CallKind("runtime", "{is_set}"),
    child_calls.Spawn: CallKind("runtime", results.Done),
    child_calls.ChildEvents: CallKind("runtime", results.Done),
    child_calls.CancelChild: CallKind("runtime", results.Done),
    code_calls.RunCode: CallKind("runtime", "{result, stdout, error}"),
    host_calls.EmitValue: CallKind("runtime", results.Done),
    host_calls.EmitText: CallKind("runtime", results.Done),
    host_calls.Interrupt: CallKind("runtime", results.Done),
    host_calls.Cancel: CallKind("runtime", results.Done),
}
"""Every call that a program may send, in the order of the reference."""


def require_traits(call: Call | HostCall, model: ModelInfo) -> None:
    """Raises ModelLacksTrait if the model lacks a trait that the call wants."""
    for trait in CALL_KINDS[type(call)].traits:
        if trait not in model.traits:
            raise ModelLacksTrait(
                f"{op_of(type(call))}: the model {model.name} lacks the trait {trait}; it has "
                f"{', '.join(model.traits) or 'none'}",
                hint="the call models lists the models that have a trait",
                field="op",
            )


def op_of(call_type: type) -> str:
    """How a call is named on the wire."""
    tag = call_type.__struct_config__.tag  # type: ignore[attr-defined]
    assert isinstance(tag, str)
    return tag

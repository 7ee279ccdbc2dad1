"""The configurations of BERT and RoBERTa that the conformance kit tries, and what is left out."""

from typing import Any

from octavo.testing.variants import SwitchOff, Variant


def leave_out_positions(model: Any) -> None:
    """Add nothing for positions."""
    model.embeddings.position_embeddings.weight.data.zero_()


def shift_positions(model: Any) -> None:
    """Give each token the position before its own."""
    weight = model.embeddings.position_embeddings.weight.data
    weight.copy_(weight.roll(1, dims=0))


def leave_out_token_types(model: Any) -> None:
    """Add nothing for token types."""
    model.embeddings.token_type_embeddings.weight.data.zero_()


def leave_out_biases(model: Any) -> None:
    """Take linears and norms without their biases."""
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            parameter.data.zero_()


MISSING: dict[str, SwitchOff] = {
    "embedding of positions": leave_out_positions,
    "embedding of token types": leave_out_token_types,
    "bias": leave_out_biases,
    "exact gelu": {"hidden_act": "gelu_new"},
}
BERT = {"four heads": Variant(without=MISSING)}
ROBERTA = {
    "positions behind the padding": Variant(
        config={"type_vocab_size": 1, "pad_token_id": 1},
        without={**MISSING, "offset of positions": shift_positions},
    )
}

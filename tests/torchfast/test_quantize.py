"""int8 and int4: rounding to the nearest step, what stays exact, and odd shapes."""

import pytest
import torch

from llmbench.torchfast.quantize import GROUP, applies_to, dequantize, quantize

pytestmark = pytest.mark.xdist_group("torch")


@pytest.mark.parametrize(("scheme", "shape"), [("int8", (5, 70)), ("int4", (5, 64)), ("int4", (3, 70)), ("int4", (2, 7))])
def test_no_weight_moves_by_more_than_half_a_step(scheme, shape):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    rounded = quantize(weight, scheme)
    back = dequantize(rounded)
    assert back.shape == shape
    assert back.dtype == torch.float32
    assert rounded.values.shape == shape
    width = shape[1] if scheme == "int8" else GROUP
    steps = rounded.scales.repeat_interleave(width, dim=1)[:, : shape[1]]
    assert ((back - weight).abs() <= 0.5001 * steps).all()
    again = dequantize(quantize(back, scheme))
    assert torch.allclose(again, back, atol=1e-6)  # what is on the grid stays there


def test_the_ranges_are_used_in_full():
    weight = torch.randn(4, 64, generator=torch.Generator().manual_seed(2))
    int8, int4 = quantize(weight, "int8"), quantize(weight, "int4")
    assert int8.values.dtype == torch.int8
    assert (int8.values.abs().amax(dim=1) == 127).all()
    assert int4.values.dtype == torch.uint8
    grouped = int4.values.view(4, 2, GROUP)
    assert (grouped.amin(dim=2) == 0).all()
    assert (grouped.amax(dim=2) == 15).all()


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_constant_and_zero_weights_come_back(scheme):
    weight = torch.tensor([[0.0] * 40, [0.25] * 40, [-3.0] * 40])
    assert torch.allclose(dequantize(quantize(weight, scheme)), weight, rtol=1e-6)


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_rows_are_rounded_alone(scheme):
    weight = torch.randn(6, 64, generator=torch.Generator().manual_seed(3))
    whole = dequantize(quantize(weight, scheme))
    assert torch.equal(whole[2:4], dequantize(quantize(weight[2:4], scheme)))


def test_what_is_rounded():
    assert applies_to("model.layers.3.mlp.down_proj.weight")
    assert applies_to("lm_head.weight")
    assert not applies_to("model.embed_tokens.weight")
    assert not applies_to("model.layers.3.input_layernorm.weight")
    assert not applies_to("model.layers.3.self_attn.q_proj.bias")
    assert not applies_to("lm_head.bias")


def test_an_unknown_scheme_is_refused():
    with pytest.raises(ValueError, match="unknown quantization 'int3'; there are int8, int4"):
        quantize(torch.zeros(2, 2), "int3")

"""Test the catalogue: published sizes of models, bits per weight, mixtures of experts, and models on several GPUs."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.physics.batches import BatchLimits, BatchWork, throughput
from services.physics.catalogue.configs import model_from_config
from services.physics.catalogue.gpus import GIB, GPUS, gpu
from services.physics.catalogue.models import MODELS, model
from services.physics.catalogue.precisions import GGUF, PRECISIONS, precision
from services.physics.efficiency import practical, variants
from services.physics.parallel import Layout, communication_ms, divided, group
from services.physics.roofline import decode_ms, require_fit, weight_bytes, weight_bytes_read
from tests.support.examples import examples

WORK = BatchWork(requests=200_000, shared=2_400, own=600, output=300)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("mistral-7b", 7.25), ("mixtral-8x7b", 46.7), ("llama-3-8b", 8.03), ("llama-3-70b", 70.6),
        ("gemma-2-2b", 2.61), ("gemma-2-9b", 9.24), ("gemma-2-27b", 27.2), ("gemma-3-270m", 0.268),
        ("gemma-3-1b", 1.0), ("gemma-3-4b", 3.88), ("gemma-3-12b", 11.77), ("gemma-3-27b", 27.0),
    ],
)  # fmt: skip
def test_every_model_that_the_documents_name_has_its_published_size(name, billions):
    assert model(name).parameters / 1e9 == pytest.approx(billions, rel=0.01)
    assert model(name).source


@pytest.mark.parametrize("name", ["rtx-4080", "l4", "a100-40", "a100-80", "h100", "h200", "b200"])
def test_every_gpu_that_the_documents_name_is_there(name):
    assert GPUS[name].source
    assert (GPUS[name].link == "nvlink") == (name not in {"rtx-4080", "l4"})
    assert GPUS[name].flops("int8") == GPUS[name].ops_int8


def test_a_mixture_reads_the_experts_that_a_token_needs():
    mixtral = model("mixtral-8x7b")
    assert (mixtral.linear_parameters + 2 * mixtral.head_parameters) / 1e9 == pytest.approx(12.9, rel=0.01)
    assert mixtral.read_linear_parameters(1) == pytest.approx(mixtral.linear_parameters)
    assert mixtral.read_linear_parameters(64) == pytest.approx(mixtral.stored_linear_parameters, rel=1e-3)
    alone, many = (decode_ms(mixtral, gpu("h100"), "fp8", batch=batch, context=1) for batch in (1, 32))
    assert 3 < many / alone < 4


def test_a_mixture_is_read_from_its_configuration():
    config = {
        "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 32_000, "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }  # fmt: skip
    known = model("mixtral-8x7b")
    assert model_from_config(config, name="mixtral-8x7b", source=known.source) == known


@pytest.mark.parametrize(("name", "gib"), [("q4_k_m", 4.58), ("q3_k_s", 3.41), ("q2_k", 2.96), ("bf16", 14.96)])
def test_llama_3_8b_has_its_published_size_in_each_file(name, gib):
    assert weight_bytes(model("llama-3-8b"), name) / GIB == pytest.approx(gib, rel=0.005)


def test_fewer_bits_are_smaller_and_worse():
    for names in (("bf16", "fp8", "int4"), ("bf16", *GGUF)):
        specs = [precision(name) for name in names]
        assert [spec.lost_points for spec in specs] == sorted(spec.lost_points for spec in specs)
        sizes = [weight_bytes(model("gemma-3-12b"), name) for name in names]
        assert sizes == sorted(sizes, reverse=True)
    assert all(spec.note and spec.source for spec in PRECISIONS.values())
    with pytest.raises(ValueError, match="known are bf16, fp8, int8"):
        precision("int3")


def test_int8_is_as_fast_as_fp8_and_faster_than_bf16_on_ampere():
    a100, h100 = gpu("a100-80"), gpu("h100")
    assert a100.flops("int8") == 2 * a100.flops("bf16") == 2 * a100.flops("fp8")
    assert h100.flops("int8") == h100.flops("fp8")


def test_12b_in_bf16_does_not_fit_on_16_gb():
    with pytest.raises(ValueError, match=r"needs 21\.9 GiB .* has 16 GiB"):
        require_fit(model("gemma-3-12b"), gpu("rtx-4080"), "bf16")
    require_fit(model("gemma-3-12b"), gpu("rtx-4080"), "int8")


@settings(max_examples=examples(30), deadline=None)
@given(st.sampled_from(sorted(MODELS)), st.sampled_from(sorted(set(GPUS) - {"cpu"})), st.sampled_from([2, 4, 8]))
def test_more_gpus_never_do_less_and_no_layout_beats_the_sum_of_its_gpus(name, on, count):
    shape, card = model(name), gpu(on)
    if shape.heads % count:
        with pytest.raises(ValueError, match="cannot divide evenly"):
            divided(shape, Layout(tensor=count))
        return
    try:
        one = throughput(shape, card, "int4", WORK, limits=BatchLimits(sequences=64)).per_second
    except ValueError:
        return  # it does not fit on one
    data = throughput(shape, card, "int4", WORK, layout=Layout(replicas=count), limits=BatchLimits(sequences=64))
    assert data.per_second == pytest.approx(count * one)
    ganged = throughput(shape, group(card, Layout(tensor=count)), "int4", WORK, limits=BatchLimits(sequences=64))
    tensor = throughput(shape, card, "int4", WORK, layout=Layout(tensor=count), limits=BatchLimits(sequences=64))
    assert tensor.per_second < ganged.per_second * 1.001  # communication and copied heads only cost


def test_a_few_requests_are_shared_among_the_engines():
    shape, card = model("gemma-3-12b"), gpu("h100")

    def found(requests, replicas):
        work = replace(WORK, requests=requests)
        return throughput(shape, card, "fp8", work, layout=Layout(replicas=replicas), limits=BatchLimits(sequences=64))

    assert (found(64, 8).batch, found(64, 8).hours) == (8, pytest.approx(found(8, 1).hours))
    assert found(64, 8).hours > found(64, 1).hours / 4
    assert found(3, 8).hours == pytest.approx(found(1, 1).hours)
    assert found(9, 8).hours == pytest.approx(found(2, 1).hours)


def test_a_pipeline_with_fewer_requests_than_stages_is_refused():
    with pytest.raises(ValueError, match="a pipeline of 4 stages needs as many requests at once, and has 3"):
        throughput(model("gemma-3-4b"), gpu("h100"), "fp8", replace(WORK, requests=3), layout=Layout(pipeline=4))


def test_communication_grows_with_gpus_and_tokens_and_is_dearer_over_pcie():
    shape = model("llama-3-70b")
    few, many = (communication_ms(shape, gpu("h100"), Layout(tensor=8), tokens) for tokens in (1, 4_096))
    assert few == pytest.approx(2 * 80 * 0.01, rel=0.05)  # two small all-reduces a layer
    assert many > 10 * few
    assert communication_ms(shape, gpu("l4"), Layout(tensor=8), 1) > few
    assert communication_ms(shape, gpu("h100"), Layout(replicas=8), 4_096) == 0
    assert communication_ms(shape, gpu("h100"), Layout(pipeline=8), 1) < few
    assert str(Layout(tensor=4, replicas=2)) == "data 2 x tensor 4"


def test_70b_fits_on_two_h100_in_fp8_and_is_faster_on_more():
    shape, card = model("llama-3-70b"), gpu("h100")
    rates = [throughput(shape, card, "fp8", WORK, layout=Layout(tensor=n)).per_second for n in (2, 4, 8)]
    assert rates == sorted(rates)
    with pytest.raises(ValueError, match="h100 has 80 GiB"):
        throughput(shape, card, "bf16", WORK)


def test_the_variants_lie_on_both_sides_of_the_usual_constants():
    usual = practical(gpu("h100"))
    found = variants(gpu("h100"))
    assert len(found) == 10
    for low, high in found:
        changed = [name for name in usual.__slots__ if getattr(low, name) != getattr(high, name)]
        assert len(changed) == 1
        assert getattr(low, changed[0]) <= getattr(usual, changed[0]) <= getattr(high, changed[0])
    assert len(variants(gpu("cpu"))) == 3
    assert replace(usual) == usual


def test_read_bytes_of_a_dense_model_do_not_depend_on_the_batch():
    shape = model("mistral-7b")
    assert weight_bytes_read(shape, "fp8") == weight_bytes_read(shape, "fp8", 500)

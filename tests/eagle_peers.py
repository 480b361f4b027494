"""Runs in another project's environment: computes heads there, on the same files and numbers.

    python eagle_peers.py {speculators,specforge} FOLDER

Every subfolder of FOLDER holds a ``head`` and ``in.safetensors``: ``states`` [N, 3 H] (row t: the
state of t - 1), ``ids`` [N] (row t: token t) and ``embed`` [V, H]. It gets ``out.safetensors``:
``logits`` [steps, N, D], where step s of row t has read token t + s and been fed back s times; and
``keys.json``: the names that did not match. Nothing of labkit is imported here.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

STEPS = 3


def speculators(folder, tensors, given):
    from speculators.models.eagle3.config import Eagle3SpeculatorConfig
    from speculators.models.eagle3.core import Eagle3DraftModel

    config = Eagle3SpeculatorConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    model = Eagle3DraftModel(config).float().eval()
    keys = model.load_state_dict(tensors, strict=False)
    if "embed_tokens.weight" not in tensors:
        model.embed_tokens.weight.data.copy_(given["embed"])
    rows = []
    model.lm_head.register_forward_hook(lambda _m, _i, out: rows.append(out[0].clone()))
    ids = given["ids"][None]
    model(given["states"][None], ids, document_ids=torch.zeros_like(ids), ttt_steps=STEPS)
    return torch.stack(rows), keys


def specforge(folder, tensors, given):
    from specforge.modeling.draft.llama3_eagle import (
        LlamaForCausalLMEagle3,
        prepare_decoder_attention_mask,
    )
    from transformers import LlamaConfig

    config = LlamaConfig(**json.loads((folder / "config.json").read_text()))
    model = LlamaForCausalLMEagle3(config).float().eval()
    keys = model.load_state_dict(tensors, strict=False)
    states, ids = given["states"][None], given["ids"]
    n = ids.shape[0]
    mask = prepare_decoder_attention_mask(torch.ones(1, n, dtype=torch.bool), (1, n), states, 0)
    hidden, cache, rows = model.project_hidden_states(states), [[], []], []
    for step in range(STEPS):
        shifted = torch.cat((ids[step:], ids.new_zeros(step)))
        hidden = model.backbone(
            input_embeds=given["embed"][shifted][None],
            hidden_states=hidden,
            cache_hidden=cache,
            attention_mask=mask,
            position_ids=torch.arange(n)[None],
        )
        rows.append(model.compute_logits(hidden)[0])
    return torch.stack(rows), keys


def main():
    peer, root = sys.argv[1:]
    run = {"speculators": speculators, "specforge": specforge}[peer]
    for case in sorted(Path(root).iterdir()):
        tensors = load_file(case / "head" / "model.safetensors")
        with torch.no_grad():
            logits, keys = run(case / "head", tensors, load_file(case / "in.safetensors"))
        save_file({"logits": logits.contiguous()}, case / "out.safetensors")
        names = {"missing": keys.missing_keys, "unexpected": keys.unexpected_keys}
        (case / "keys.json").write_text(json.dumps(names))


if __name__ == "__main__":
    main()

# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the lab's model: a tiny hybrid of linear attention and experts with random weights.

It has the shape of Qwen3.5 and Qwen3-Next (three Gated DeltaNet layers to one layer of full
attention, a mixture of experts with one shared expert in every layer), so that vLLM takes the
same paths through it - hybrid KV cache, padded Mamba pages, sharded experts - as through the
122 B model, at a ten-thousandth of the size. Nothing is downloaded: weights come from a seeded
generator and the tokenizer is trained here on text made here. The same arguments, with the same
library versions, give the same bytes.

The result is a Hugging Face cache repository, laid out as huggingface_hub lays it out:

    models--unimem--tiny-hybrid/
        blobs/<sha256 of the content>        weights (LFS files on a hub)
        blobs/<git blob sha1>                everything else
        refs/main                            the revision
        snapshots/<revision>/<file>          relative links into blobs/

Run it inside the engine's Python environment (it needs torch, transformers, tokenizers).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import tempfile
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3NextConfig, Qwen3NextForCausalLM

REPOSITORY = "models--unimem--tiny-hybrid"
SEED = 20261130
VOCABULARY = 4096
SHARD_SIZE = "6MB"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def corpus(sentences: int = 4000) -> list[str]:
    """Sentences of invented, pronounceable words: enough variety for the tokenizer to learn merges from."""
    source = random.Random(SEED)
    syllables = [consonant + vowel for consonant in "bcdfghjklmnprstvwz" for vowel in "aeiou"]
    words = ["".join(source.choices(syllables, k=source.randint(1, 4))) for _ in range(3000)]
    return [" ".join(source.choices(words, k=source.randint(4, 12))).capitalize() + "." for _ in range(sentences)]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer trained on the corpus."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=SPECIAL[0], pad_token=SPECIAL[0], additional_special_tokens=SPECIAL[1:], model_max_length=32768
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def make_config(head_dim: int, repeat: int, tokenizer: PreTrainedTokenizerFast) -> Qwen3NextConfig:
    """The pattern of four layers, so often. Every dimension is divisible by two ranks; head dimensions of 128 are what vLLM's CPU kernels take."""
    return Qwen3NextConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        num_hidden_layers=4 * repeat,
        layer_types=["linear_attention", "linear_attention", "linear_attention", "full_attention"] * repeat,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_dim,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=head_dim,
        linear_value_head_dim=head_dim,
        linear_conv_kernel_dim=4,
        intermediate_size=256,
        num_experts=16,
        num_experts_per_tok=4,
        moe_intermediate_size=128,
        shared_expert_intermediate_size=128,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        norm_topk_prob=True,
        max_position_embeddings=32768,
        tie_word_embeddings=False,
        dtype="bfloat16",
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def make_weights(config: Qwen3NextConfig, tokenizer: PreTrainedTokenizerFast) -> Qwen3NextForCausalLM:
    """Random weights, with an output layer that can only win with a printable token.

    The logit of every special token and of every token that is not printable ASCII is zero, so a greedy
    completion never ends early and its text is never empty or half a character: a completion without text
    then always means that something is broken.
    """
    torch.manual_seed(SEED)
    model = Qwen3NextForCausalLM(config).to(torch.bfloat16)
    silent = [
        index
        for index in range(config.vocab_size)
        if not (text := tokenizer.decode([index], skip_special_tokens=True)) or not text.isascii() or not text.isprintable()
    ]
    with torch.no_grad():
        model.lm_head.weight[silent] = 0
    return model


def blob_name(path: Path) -> str:
    """The name huggingface_hub gives a blob: the ETag, which is the SHA-256 of an LFS file and git's hash of any other."""
    content = path.read_bytes()
    if path.suffix == ".safetensors":
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def publish(plain: Path, repository: Path) -> Path:
    """Move the files of a plain model directory into a cache repository; returns the snapshot."""
    names = {path.name: blob_name(path) for path in sorted(plain.iterdir())}
    revision = hashlib.sha1(json.dumps(names, sort_keys=True).encode(), usedforsecurity=False).hexdigest()
    snapshot = repository / "snapshots" / revision
    for directory in (repository / "blobs", repository / "refs", snapshot):
        directory.mkdir(parents=True)
    for name, blob in names.items():
        shutil.move(plain / name, repository / "blobs" / blob)
        os.chmod(repository / "blobs" / blob, 0o644)
        (snapshot / name).symlink_to(os.path.join("..", "..", "blobs", blob))
    (repository / "refs" / "main").write_text(revision, encoding="ascii")
    return snapshot


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("hub", type=Path, help="directory to create the cache repository in (as ~/.cache/huggingface/hub)")
    parser.add_argument("--repository", default=REPOSITORY, help="name of the cache repository (default: %(default)s)")
    parser.add_argument("--head-dim", type=int, default=128, help="dimension of every attention head; with 32 vLLM starts, says healthy, and fails to generate")
    parser.add_argument("--repeat", type=int, default=1, help="how often the pattern of four layers comes: once for each stage of a pipeline, at least")
    arguments = parser.parse_args()

    repository = arguments.hub / arguments.repository
    if repository.exists():
        parser.error(f"{repository} exists already; remove it to build the model again")
    torch.set_num_threads(1)  # the order of additions, and so the bytes, must not depend on the number of cores
    tokenizer = make_tokenizer()
    if len(tokenizer) != VOCABULARY:
        parser.error(f"the tokenizer has {len(tokenizer)} tokens, the model expects {VOCABULARY}")
    config = make_config(arguments.head_dim, arguments.repeat, tokenizer)
    arguments.hub.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.hub, prefix=".make-model-") as scratch:
        plain = Path(scratch)
        make_weights(config, tokenizer).save_pretrained(plain, max_shard_size=SHARD_SIZE)
        tokenizer.save_pretrained(plain)
        # Greedy unless a request says otherwise: see make_weights. Hand-written, because transformers refuses
        # to save sampling parameters beside do_sample=false, and vLLM reads top_k whatever do_sample says.
        (plain / "generation_config.json").write_text(
            json.dumps({"do_sample": True, "top_k": 1, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}, indent=2) + "\n",
            encoding="utf-8",
        )
        snapshot = publish(plain, repository)
    shards = sorted(snapshot.glob("*.safetensors"))
    print(f"{snapshot}: {len(shards)} shards, {sum(path.stat().st_size for path in shards)} bytes of weights")


if __name__ == "__main__":
    main()

"""Small random pipelines of every supported family, built from the real diffusers classes.

Weights are random and the pictures mean nothing; shapes, call paths and numerics are real. The
default is two to three blocks of width 128 and a 32×32 clip, so that a whole call takes well
under a second on two cores.
"""

from __future__ import annotations

import torch
from diffusers import (
    AutoencoderKLCogVideoX,
    AutoencoderKLWan,
    CogVideoXDDIMScheduler,
    CogVideoXImageToVideoPipeline,
    CogVideoXPipeline,
    CogVideoXTransformer3DModel,
    CogVideoXVideoToVideoPipeline,
    FlowMatchEulerDiscreteScheduler,
    WanImageToVideoPipeline,
    WanPipeline,
    WanTransformer3DModel,
    WanVideoToVideoPipeline,
)
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    CLIPImageProcessor,
    CLIPVisionConfig,
    CLIPVisionModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
    UMT5Config,
    UMT5EncoderModel,
)

PROMPT = "a red circle moves right on a black background"
OTHER_PROMPT = "a blue square on a black background"
_WORDS = "<pad> </s> <unk> a red circle moves right on black background blue square"


def tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer that knows the words of the two prompts above."""
    vocabulary = {word: index for index, word in enumerate(_WORDS.split())}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


def _text_encoder(config_class, model_class, width: int = 64):
    return model_class(
        config_class(
            vocab_size=32, d_model=width, d_kv=16, d_ff=64, num_layers=1, num_heads=2,
            feed_forward_proj="gated-gelu",
        )
    ).eval()


def _finish(pipe, dtype):
    if dtype != torch.float32:
        pipe.to(dtype)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _cogvideox_vae():
    return AutoencoderKLCogVideoX(
        block_out_channels=(8, 8, 8, 8), layers_per_block=1, latent_channels=8, norm_num_groups=2,
        sample_height=32, sample_width=32, temporal_compression_ratio=4,
        down_block_types=("CogVideoXDownBlock3D",) * 4, up_block_types=("CogVideoXUpBlock3D",) * 4,
    )


def cogvideox(
    pipeline=CogVideoXPipeline, *, layers=2, heads=2, head_width=64, dtype=torch.float32, scheduler=None, seed=0,
    version_15=False,
):
    """A random CogVideoX pipeline; `version_15` gives the 1.5 layout (temporal patches, ofs)."""
    torch.manual_seed(seed)
    image = issubclass(pipeline, CogVideoXImageToVideoPipeline)
    extra = dict(patch_size_t=2, patch_bias=False) if version_15 else {}
    if version_15 and image:
        extra["ofs_embed_dim"] = 64
    transformer = CogVideoXTransformer3DModel(
        num_attention_heads=heads, attention_head_dim=head_width, in_channels=16 if image else 8,
        out_channels=8, time_embed_dim=64, text_embed_dim=64, num_layers=layers, sample_width=4,
        sample_height=4, sample_frames=9, max_text_seq_length=12, patch_size=2,
        temporal_compression_ratio=4, use_rotary_positional_embeddings=True, **extra,
    ).eval()
    scheduler = scheduler or CogVideoXDDIMScheduler(
        rescale_betas_zero_snr=True, timestep_spacing="trailing",
        prediction_type="v_prediction", snr_shift_scale=3.0,
    )
    pipe = pipeline(
        tokenizer=tokenizer(), text_encoder=_text_encoder(T5Config, T5EncoderModel),
        vae=_cogvideox_vae(), transformer=transformer, scheduler=scheduler,
    )
    return _finish(pipe, dtype)


def wan(
    pipeline=WanPipeline, *, layers=2, two=False, dtype=torch.float32, scheduler=None, seed=0,
    image_context=False, expand_timesteps=False,
):
    """A random Wan pipeline: `two` gives the 2.2 layout with a second transformer,
    `image_context` the 2.1 image-to-video one with added keys and values, `expand_timesteps`
    the 2.2 5B one with a timestep per token."""
    torch.manual_seed(seed)
    image = issubclass(pipeline, WanImageToVideoPipeline)
    channels = 36 if image and not expand_timesteps else 16
    extra = dict(image_dim=32, added_kv_proj_dim=128) if image_context else {}

    def transformer():
        return WanTransformer3DModel(
            patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=64,
            in_channels=channels, out_channels=16, text_dim=64, freq_dim=64, ffn_dim=256,
            num_layers=layers, cross_attn_norm=True, qk_norm="rms_norm_across_heads",
            rope_max_seq_len=64, **extra,
        ).eval()

    vae = AutoencoderKLWan(
        base_dim=4, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1,
        temperal_downsample=[False, True, True],
    )
    options = {}
    if two:
        options.update(transformer_2=transformer(), boundary_ratio=0.875)
    if expand_timesteps:
        options.update(expand_timesteps=True)
    if image_context:
        vision = CLIPVisionConfig(
            hidden_size=32, projection_dim=32, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=64, image_size=32, patch_size=16,
        )
        options.update(
            image_encoder=CLIPVisionModel(vision).eval(),
            image_processor=CLIPImageProcessor(
                size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
            ),
        )
    pipe = pipeline(
        tokenizer=tokenizer(), text_encoder=_text_encoder(UMT5Config, UMT5EncoderModel), vae=vae,
        transformer=transformer(),
        scheduler=scheduler or FlowMatchEulerDiscreteScheduler(shift=3.0), **options,
    )
    return _finish(pipe, dtype)


def picture(size: int = 32) -> Image.Image:
    """A fixed small RGB picture for the image-to-video pipelines."""
    generator = torch.Generator().manual_seed(7)
    values = torch.rand(size, size, 3, generator=generator)
    return Image.fromarray((values * 255).byte().numpy())


def arguments(pipe, **changes) -> dict:
    """Call arguments that suit `pipe`: 5 steps, 32×32, latents out, seed 0; `seed=` changes it."""
    seed = changes.pop("seed", 0)
    call = dict(
        prompt=PROMPT, negative_prompt="", num_inference_steps=5, guidance_scale=5.0, height=32,
        width=32, output_type="latent", generator=torch.Generator().manual_seed(seed),
        max_sequence_length=12,
    )
    if isinstance(pipe, (CogVideoXVideoToVideoPipeline, WanVideoToVideoPipeline)):
        call.update(video=[picture()] * 9, strength=0.8)
    else:
        call.update(num_frames=9)
    if isinstance(pipe, (CogVideoXImageToVideoPipeline, WanImageToVideoPipeline)):
        call.update(image=picture())
    if getattr(getattr(pipe.transformer, "config", None), "added_kv_proj_dim", None):
        call.update(max_sequence_length=512)
    call.update(changes)
    return call


def latents(pipe, **changes) -> torch.Tensor:
    """The latents of one real pipeline call with `arguments(pipe, **changes)`."""
    return pipe(**arguments(pipe, **changes)).frames


VARIANTS = {
    "cogvideox": lambda: cogvideox(),
    "cogvideox i2v": lambda: cogvideox(CogVideoXImageToVideoPipeline),
    "cogvideox v2v": lambda: cogvideox(CogVideoXVideoToVideoPipeline),
    "cogvideox 1.5": lambda: cogvideox(version_15=True),
    "cogvideox 1.5 i2v": lambda: cogvideox(CogVideoXImageToVideoPipeline, version_15=True),
    "wan 2.1": lambda: wan(),
    "wan 2.1 i2v": lambda: wan(WanImageToVideoPipeline, image_context=True),
    "wan 2.2": lambda: wan(two=True),
    "wan 2.2 i2v": lambda: wan(WanImageToVideoPipeline, two=True),
    "wan 2.2 5b": lambda: wan(expand_timesteps=True),
    "wan 2.2 5b i2v": lambda: wan(WanImageToVideoPipeline, expand_timesteps=True),
    "wan v2v": lambda: wan(WanVideoToVideoPipeline),
}
"""A constructor for every layout that the family table claims to support."""

#!/usr/bin/env python3
"""pytorch_ref.py - writes tests/golden: numbers from PyTorch with which the tests compare lockstep.

Packages: python3 -m venv V && V/bin/pip install torch transformers safetensors numpy
Use:      V/bin/python tools/pytorch_ref.py [--out tests/golden]

Models gpt2, llama, llama_tied, llama_scaled (rotary frequencies scaled as in Llama 3.1), mixtral, qwen3_moe, qwen3 and starcoder2,
each a folder with config.json and model.safetensors as transformers writes them (the initial weights,
fp32) and golden.safetensors:

    batch.x, batch.y        i32 [10,B,T]   tokens and targets of the steps; target -1 is ignored
    logits                  f32 [B,T,V]    of batch 0 under the initial weights
    fp32.loss, fp32.norm    f32 [10]       of each step: loss, gradient norm before clipping
    fp32.grad.NAME          f32            gradient of step 1 before clipping
    fp32.final.NAME         f32            weights after 10 steps
    bf16.loss, bf16.norm, bf16.grad.NAME   the same in bf16

NAME is the tensor's name in model.safetensors. A tied head has no name of its own: its gradient is
in the embedding's. One step:

    loss = sum over valid targets of -log softmax(logits) / their count, in fp32
    clip to global norm 1: g *= min(1, 1 / (norm + 1e-6))
    AdamW: lr 1e-3 (every step), betas 0.9 0.95, eps 1e-8, weight decay 0.1 on tensors of two
    dims (embeddings included), 0 on norms and biases

bf16: weights are kept in fp32; each step rounds them to a bf16 model, which does forward and
backward; its gradients are widened to fp32, and clipping and AdamW work on the fp32 weights. Logits
are widened to fp32 for the loss.

qwen3, starcoder2: only fp32, since PyTorch's bf16 gradients of the QK-norm and of a key's bias differ from the fp32 ones by 2e-2 and
2.8e-2; the bound of the others is 2e-2.

Models with experts: fp32 alone, since in bf16 another rounding chooses other experts. What is trained is loss + the routers' losses,
f32 [10,layers], a layer's being

    fp32.router_loss   AUX * E * sum over e of (tokens that chose e / tokens) * (mean softmax score of e)
                       + Z * mean of logsumexp(logits)^2

Where the numbers are no reference: adding a vector to every key changes no softmax, so the gradient of
GPT-2's key bias (elements 32..63 of c_attn.bias) is zero except for rounding errors, which AdamW then amplifies
to steps as large as the others'. Compare that gradient with an absolute bound and leave out these elements of
fp32.final; nothing else depends on them.

resnet: a residual network (class Resnet below: torchvision's basic blocks and names behind a stem of one
3 x 3 convolution), in training mode:

    batch.x f32 [10,B,C,H,W], batch.y i32 [10,B]   images and classes of the steps
    fp32.loss, fp32.grad.NAME, fp32.final.NAME     as above; final has running statistics too
    logits                                         of batch 0, in evaluation mode, after the 10 steps

its step: mean cross-entropy; SGD, lr 0.05, momentum 0.9, weight decay 0.1 on tensors of two dims or more.

optim/golden.safetensors: optimizers alone, five steps on w [6,5] and b [5] with given gradients:

    lr f32 [5], param.w [6,5], param.b [5], grad.w [5,6,5], grad.b [5,5]; CASE.w [5,6,5] and
    CASE.b [5,5] are the parameters after each step

CASE sgd (momentum 0), momentum, nesterov (momentum 0.9), adam (decay added to the gradient), adamw
(decoupled): torch.optim. lamb, lars: lamb() and lars() below. Weight decay 0.1 on w and 0 on b, betas
0.9 0.95, eps 1e-4, no clipping.
"""
import argparse
import os
import platform
import shutil

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file
from transformers import (GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM,
                          Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM, Starcoder2Config,
                          Starcoder2ForCausalLM)

STEPS, VOCAB, IGNORED = 10, 97, -1
BETAS, EPS, DECAY, RATE, CLIP = (0.9, 0.95), 1e-8, 0.1, 1e-3, 1.0

LLAMA = dict(hidden_size=32, intermediate_size=88, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, vocab_size=VOCAB, max_position_embeddings=32, rms_norm_eps=1e-5,
             bos_token_id=1, eos_token_id=2)
PLAIN = dict(rope_type="default", rope_theta=10000.0)
SCALED = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=16)


def make_gpt2(activation="gelu_new"):
    return GPT2LMHeadModel(GPT2Config(
        n_layer=2, n_embd=32, n_head=4, n_positions=32, vocab_size=VOCAB, activation_function=activation, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0))


def make_llama(tied, rope):
    return LlamaForCausalLM(LlamaConfig(**LLAMA, tie_word_embeddings=tied, rope_parameters=dict(rope)))


AUX, Z = 0.05, 0.01
EXPERTS = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=VOCAB,
               max_position_embeddings=32, router_aux_loss_coef=AUX, rope_parameters=dict(PLAIN), bos_token_id=1, eos_token_id=2,
               tie_word_embeddings=False)


def make_mixtral():
    return MixtralForCausalLM(MixtralConfig(**EXPERTS, intermediate_size=12, num_local_experts=4, num_experts_per_tok=2))


def make_qwen3_moe():
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**EXPERTS, head_dim=8, moe_intermediate_size=8, num_experts=5, num_experts_per_tok=3,
                                              norm_topk_prob=False))


def make_qwen3():
    return Qwen3ForCausalLM(Qwen3Config(**LLAMA, head_dim=12, tie_word_embeddings=True, rope_parameters=dict(PLAIN)))


def make_starcoder2(activation="gelu_pytorch_tanh", tied=True):
    return Starcoder2ForCausalLM(Starcoder2Config(
        hidden_size=32, intermediate_size=72, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=VOCAB,
        max_position_embeddings=32, hidden_act=activation, sliding_window=None, attention_dropout=0.0, residual_dropout=0.0,
        embedding_dropout=0.0, tie_word_embeddings=tied, rope_parameters=dict(PLAIN), bos_token_id=1, eos_token_id=2))


MODELS = {  # name: B, T, maker
    "gpt2": (3, 16, make_gpt2),
    "llama": (2, 24, lambda: make_llama(False, PLAIN)),
    "llama_tied": (3, 16, lambda: make_llama(True, PLAIN)),
    "llama_scaled": (2, 24, lambda: make_llama(False, SCALED)),
    "mixtral": (2, 16, make_mixtral),
    "qwen3_moe": (2, 16, make_qwen3_moe),
    "qwen3": (3, 16, make_qwen3),
    "starcoder2": (3, 16, make_starcoder2),
}


def set_up():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.set_float32_matmul_precision("highest")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


@torch.no_grad()
def fill(model, seed):
    """No norm is 1, no bias is 0; small enough that PyTorch's bf16 gradients are within 2e-2 of its fp32
    ones (with 0.2 for 0.05 they differ by up to 5e-2, and no other implementation could be nearer)."""
    g = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        noise = torch.randn(p.shape, generator=g) * 0.05
        is_norm = p.dim() == 1 and "Norm" in owner(model, p)
        p.copy_(1 + noise if is_norm else noise)
    return model.eval()


def to_bf16(model):
    """Rounds the parameters only: model.to() would round the rotary frequencies as well."""
    for p in model.parameters():
        p.data = p.data.to(torch.bfloat16)
    return model.eval()


def owner(model, param):
    """Name of the module class whose weight this is; "" for a bias."""
    for module in model.modules():
        if getattr(module, "weight", None) is param:
            return type(module).__name__
    return ""


def make_batches(B, T, seed):
    """Sequences in which a token mostly determines the next, and targets with gaps of unequal size."""
    g = torch.Generator().manual_seed(seed)
    seq = torch.randint(VOCAB, (STEPS, B, T + 1), generator=g)
    for t in range(1, T + 1):
        follows = torch.rand((STEPS, B), generator=g) < 0.75
        seq[:, :, t] = torch.where(follows, (5 * seq[:, :, t - 1] + 3) % VOCAB, seq[:, :, t])
    x, y = seq[:, :, :-1].clone(), seq[:, :, 1:].clone()
    y[torch.rand(y.shape, generator=g) < 0.1] = IGNORED
    y[:, 0, :T // 3] = IGNORED
    return x, y


def routers_of(model):
    """The input of each layer's router, recorded when the model runs, and the router's weight."""
    seen = []
    for layer in model.model.layers:
        layer.mlp.gate.register_forward_hook(lambda m, args, out: seen.append((args[0], m.weight)))
    return seen


def router_loss(x, weight, chosen):
    logits = x.reshape(-1, x.shape[-1]) @ weight.T
    E, p = logits.shape[-1], logits.softmax(-1)
    share = torch.nn.functional.one_hot(p.topk(chosen, -1).indices, E).sum((0, 1)) / len(p)
    return AUX * E * (share * p.mean(0)).sum() + Z * logits.logsumexp(-1).square().mean()


def in_files(model, tensors):
    """Weights by their names in files: there each expert has tensors of its own."""
    if not hasattr(model.config, "num_experts_per_tok"):
        return tensors
    mixtral, out = model.config.model_type == "mixtral", {}
    mlp, parts = (".block_sparse_moe.", ("w1", "w3", "w2")) if mixtral else (".mlp.", ("gate_proj", "up_proj", "down_proj"))
    for name, t in tensors.items():
        layer = name.split(".mlp.")[0]
        if name.endswith("experts.gate_up_proj"):
            for e, both in enumerate(t):
                for part, w in zip(parts, both.chunk(2)):
                    out[f"{layer}{mlp}experts.{e}.{part}.weight"] = w
        elif name.endswith("experts.down_proj"):
            for e, w in enumerate(t):
                out[f"{layer}{mlp}experts.{e}.{parts[2]}.weight"] = w
        else:
            out[name.replace(".mlp.", mlp)] = t
    return out


def loss_of(model, x, y):
    logits = model(input_ids=x, use_cache=False).logits.float()
    return torch.nn.functional.cross_entropy(logits.view(-1, VOCAB), y.reshape(-1), ignore_index=IGNORED)


def adamw(params):
    groups = [{"params": [p for p in params if p.dim() >= 2], "weight_decay": DECAY},
              {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=EPS)


def train(master, worker, x, y):
    """Ten steps on master's weights; worker (master itself, or its bf16 twin) does the passes."""
    names, masters = zip(*master.named_parameters())
    workers = [p for _, p in worker.named_parameters()]
    opt, losses, norms, grads = adamw(masters), [], [], {}
    experts = hasattr(master.config, "num_experts_per_tok")
    routers, extra = routers_of(worker) if experts else [], []
    for step in range(STEPS):
        with torch.no_grad():
            for w, m in zip(workers, masters):
                w.copy_(m)
                w.grad = None
        routers.clear()
        loss = loss_of(worker, x[step], y[step])
        own = [router_loss(*r, master.config.num_experts_per_tok) for r in routers]
        (loss + sum(own)).backward()
        extra.append([v.item() for v in own])
        for w, m in zip(workers, masters):
            m.grad = w.grad.float()
        if step == 0:
            grads = {n: m.grad.clone() for n, m in zip(names, masters)}
        norms.append(torch.nn.utils.clip_grad_norm_(masters, CLIP).item())
        losses.append(loss.item())
        opt.step()
    final = {n: m.detach().clone() for n, m in zip(names, masters)}
    return losses, norms, in_files(master, grads), in_files(master, final), extra


def write_model(folder, B, T, make, seed):
    shutil.rmtree(folder, ignore_errors=True)
    master = fill(make(), seed)
    master.save_pretrained(folder)
    x, y = make_batches(B, T, seed + 1)
    with torch.no_grad():
        out = {"batch.x": x.int(), "batch.y": y.int(), "logits": master(input_ids=x[0]).logits}

    runs = {"fp32": (master, master)}
    if not hasattr(master.config, "num_experts_per_tok") and master.config.model_type not in ("qwen3", "starcoder2"):
        runs["bf16"] = fill(make(), seed), to_bf16(make())
    for kind, (m, w) in runs.items():
        losses, norms, grads, final, extra = train(m, w, x, y)
        if extra[0]:
            out[kind + ".router_loss"] = torch.tensor(extra, dtype=torch.float32)
        out[kind + ".loss"] = torch.tensor(losses, dtype=torch.float32)
        out[kind + ".norm"] = torch.tensor(norms, dtype=torch.float32)
        out.update({f"{kind}.grad.{n}": g for n, g in grads.items()})
        if kind == "fp32":
            out.update({f"{kind}.final.{n}": p for n, p in final.items()})
        print(f"{os.path.basename(folder):13s} {kind} loss", " ".join(f"{v:.4f}" for v in losses),
              "norm", " ".join(f"{v:.3f}" for v in norms[:3]))
    save(out, os.path.join(folder, "golden.safetensors"))


def save(tensors, path):
    arrays = {n: np.ascontiguousarray(t.numpy() if torch.is_tensor(t) else t) for n, t in tensors.items()}
    save_file(arrays, path, metadata={"format": "pt"})


# ---- images ----

RESNET = dict(channels=3, size=(8, 10), filters=4, stages=3, blocks=2, classes=5)


def conv(out, c, k, stride=1):
    return torch.nn.Conv2d(c, out, k, stride=stride, padding=k // 2, bias=False)


class BasicBlock(torch.nn.Module):
    def __init__(self, c, out, stride):
        super().__init__()
        self.conv1, self.bn1 = conv(out, c, 3, stride), torch.nn.BatchNorm2d(out)
        self.conv2, self.bn2 = conv(out, out, 3), torch.nn.BatchNorm2d(out)
        self.downsample = None
        if stride != 1 or c != out:
            self.downsample = torch.nn.Sequential(conv(out, c, 1, stride), torch.nn.BatchNorm2d(out))

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class Resnet(torch.nn.Module):
    def __init__(self, channels, size, filters, stages, blocks, classes):
        super().__init__()
        self.conv1, self.bn1, c = conv(filters, channels, 3), torch.nn.BatchNorm2d(filters), filters
        for s in range(stages):
            out, layer = filters << s, []
            for i in range(blocks):
                layer.append(BasicBlock(c, out, 2 if s > 0 and i == 0 else 1))
                c = out
            setattr(self, f"layer{s + 1}", torch.nn.Sequential(*layer))
        self.stages, self.fc = stages, torch.nn.Linear(c, classes)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        for s in range(self.stages):
            x = getattr(self, f"layer{s + 1}")(x)
        return self.fc(x.mean(dim=(2, 3)))


def state_of(model):
    return {n: t.detach().clone() for n, t in model.state_dict().items() if "num_batches" not in n}


def write_resnet(folder, seed):
    g, B = torch.Generator().manual_seed(seed), 6
    os.makedirs(folder, exist_ok=True)
    model = Resnet(**RESNET).train()
    with torch.no_grad():
        for p in model.parameters():
            noise = torch.randn(p.shape, generator=g)
            p.copy_(1 + 0.1 * noise if p.dim() == 1 and "BatchNorm" in owner(model, p) else 0.2 * noise)
    save(state_of(model), os.path.join(folder, "model.safetensors"))
    x = torch.randn((STEPS, B, RESNET["channels"], *RESNET["size"]), generator=g)
    y = torch.randint(RESNET["classes"], (STEPS, B), generator=g)
    out, losses = {"batch.x": x, "batch.y": y.int()}, []
    groups = [{"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": DECAY},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    opt = torch.optim.SGD(groups, lr=0.05, momentum=MOMENTUM)
    for step in range(STEPS):
        opt.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x[step]), y[step])
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            out.update({f"fp32.grad.{n}": p.grad.clone() for n, p in model.named_parameters()})
        opt.step()
    out["fp32.loss"] = torch.tensor(losses, dtype=torch.float32)
    out.update({f"fp32.final.{n}": t for n, t in state_of(model).items()})
    with torch.no_grad():
        out["logits"] = model.eval()(x[0])
    save(out, os.path.join(folder, "golden.safetensors"))
    print(f"{os.path.basename(folder):13s} fp32 loss", " ".join(f"{v:.4f}" for v in losses))


# ---- optimizers alone ----

OPT_EPS, MOMENTUM, TRUST = 1e-4, 0.9, 0.001


def lamb(w, g, state, lr, t, decay, adapt):
    """LAMB, You et al. 2019, algorithm 2, phi(z) = z, with bias correction:
        m = b1 m + (1-b1) g,  v = b2 v + (1-b2) g^2
        u = (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps) + decay w
        w -= lr r u,  r = |w| / |u|;  r = 1 where adapt is off or a norm is 0"""
    b1, b2 = BETAS
    state["m"] = b1 * state.get("m", 0) + (1 - b1) * g
    state["v"] = b2 * state.get("v", 0) + (1 - b2) * g * g
    u = state["m"] / (1 - b1 ** t) / (np.sqrt(state["v"] / (1 - b2 ** t)) + OPT_EPS) + decay * w
    wn, un = np.linalg.norm(w), np.linalg.norm(u)
    return w - lr * (wn / un if adapt and wn > 0 and un > 0 else 1.0) * u


def lars(w, g, state, lr, t, decay, adapt):
    """LARS, You et al. 2017: a separate rate for each tensor. The learning rate stays out of the momentum, as in
    torch.optim.SGD (in the paper it goes in; the two differ only when it changes from step to step).
        local = trust |w| / (|g| + decay |w|);  1 where adapt is off or a norm is 0
        v = momentum v + local (g + decay w),  w -= lr v"""
    wn, gn = np.linalg.norm(w), np.linalg.norm(g)
    local = TRUST * wn / (gn + decay * wn) if adapt and wn > 0 and gn > 0 else 1.0
    state["v"] = MOMENTUM * state.get("v", 0) + local * (g + decay * w)
    return w - lr * state["v"]


def run_torch(make, param, grads, lr, decay):
    p = torch.nn.Parameter(param.clone())
    opt, seen = make([p], decay), []
    for g, rate in zip(grads, lr):
        opt.param_groups[0]["lr"] = float(rate)
        p.grad = g.clone()
        opt.step()
        seen.append(p.detach().clone())
    return torch.stack(seen)


def run_numpy(rule, param, grads, lr, decay, adapt):
    w, state, seen = param.double().numpy(), {}, []
    for t, (g, rate) in enumerate(zip(grads.double().numpy(), lr), 1):
        w = rule(w, g, state, float(rate), t, decay, adapt)
        seen.append(w)
    return np.stack(seen).astype(np.float32)


def write_optimizers(folder):
    os.makedirs(folder, exist_ok=True)
    o, g = torch.optim, torch.Generator().manual_seed(50)
    lr = torch.tensor([0.0625, 0.125, 0.125, 0.03125, 0.015625])
    param = {"w": torch.randn(6, 5, generator=g), "b": torch.randn(5, generator=g)}
    grad = {n: torch.randn(5, *p.shape, generator=g) for n, p in param.items()}
    grad["w"][:, 2] *= 1e-4  # as small as eps: shows where eps is added
    rules = {
        "sgd": lambda p, d: o.SGD(p, lr=1.0, weight_decay=d),
        "momentum": lambda p, d: o.SGD(p, lr=1.0, momentum=MOMENTUM, weight_decay=d),
        "nesterov": lambda p, d: o.SGD(p, lr=1.0, momentum=MOMENTUM, nesterov=True, weight_decay=d),
        "adam": lambda p, d: o.Adam(p, lr=1.0, betas=BETAS, eps=OPT_EPS, weight_decay=d),
        "adamw": lambda p, d: o.AdamW(p, lr=1.0, betas=BETAS, eps=OPT_EPS, weight_decay=d),
    }
    out = {"lr": lr}
    for n, p in param.items():
        decay = DECAY if p.dim() >= 2 else 0.0
        out["param." + n], out["grad." + n] = p, grad[n]
        for case, make in rules.items():
            out[f"{case}.{n}"] = run_torch(make, p, grad[n], lr, decay)
        for rule in (lamb, lars):
            out[f"{rule.__name__}.{n}"] = run_numpy(rule, p, grad[n], lr, decay, p.dim() >= 2)
    save(out, os.path.join(folder, "golden.safetensors"))


README = """# Golden numbers

Written by `tools/pytorch_ref.py` (which says what each tensor is) with torch {torch},
transformers {transformers}, numpy {numpy}, Python {python}, on one thread of a CPU. Read by the tests of
losses, gradients, optimizers and Hugging Face import.

| folder | model | batch |
|---|---|---|
| gpt2 | GPT-2, 2 layers, width 32, 4 heads, 97 tokens, 32 places, tied head | [3,16] |
| llama | Llama, 2 layers, width 32, ffn 88, 4 heads, 2 kv heads, 97 tokens, own head | [2,24] |
| llama_tied | the same, tied head | [3,16] |
| llama_scaled | as llama, rotary frequencies scaled (llama3: factor 8, low 1, high 4, original 16) | [2,24] |
| mixtral | Mixtral, 2 layers, width 16, 4 heads, 2 kv heads, 4 experts of 12, 2 a token, 97 tokens | [2,16] |
| qwen3_moe | Qwen3-MoE, 2 layers, width 16, 4 heads of 8, 2 kv heads, 5 experts of 8, 3 a token (not normalized), 97 tokens | [2,16] |
| qwen3 | Qwen3, 2 layers, width 32, ffn 88, 4 heads of 12, 2 kv heads, 97 tokens, tied head | [3,16] |
| starcoder2 | StarCoder2, 2 layers, width 32, ffn 72, 4 heads, 2 kv heads, 97 tokens, tied head | [3,16] |
| resnet | residual network, 3 stages of 2 blocks, 4 filters, images 3 x 8 x 10, 5 classes | [6,3,8,10] |
| optim | SGD, momentum, Nesterov, Adam, AdamW, LAMB, LARS on [6,5] and [5], 5 steps | - |
"""


def main():
    p = argparse.ArgumentParser(description="write the golden numbers of the tests")
    p.add_argument("--out", default=os.path.join(os.path.dirname(__file__), "..", "tests", "golden"))
    out = os.path.abspath(p.parse_args().out)
    set_up()
    for i, (name, (B, T, make)) in enumerate(MODELS.items()):
        write_model(os.path.join(out, name), B, T, make, seed=10 * i + 1)
    write_resnet(os.path.join(out, "resnet"), seed=61)
    write_optimizers(os.path.join(out, "optim"))
    with open(os.path.join(out, "README.md"), "w") as f:
        f.write(README.format(torch=torch.__version__.split("+")[0], transformers=transformers.__version__,
                              numpy=np.__version__, python=platform.python_version()))


if __name__ == "__main__":
    main()

/* config_hints.c - words that people type from other programs, and the options that they mean. */
#include "train/config.h"

#include "base/base.h"

/* Words are in lower case with '_'; a value NULL is the user's own. */
static const struct option_hint hints[] = {
    { "fsdp", "parallel.zero", "3" }, { "ddp", "parallel.zero", "0" }, { "hsdp", "parallel.replicate", NULL },
    { "zero1", "parallel.zero", "1" }, { "zero2", "parallel.zero", "2" }, { "zero3", "parallel.zero", "3" },
    { "zero_stage", "parallel.zero", NULL }, { "use_distributed_optimizer", "parallel.zero", "1" },
    { "cpu_offload", "optim.offload", "cpu" },
    { "data_parallel_size", "parallel.dp", NULL }, { "tensor_parallel", "parallel.tp", NULL },
    { "tensor_parallel_size", "parallel.tp", NULL },
    { "tensor_model_parallel_size", "parallel.tp", NULL }, { "pipeline_parallel", "parallel.pp", NULL },
    { "pipeline_parallel_size", "parallel.pp", NULL }, { "pipeline_model_parallel_size", "parallel.pp", NULL },
    { "context_parallel", "parallel.cp", NULL }, { "context_parallel_size", "parallel.cp", NULL },
    { "expert_parallel", "parallel.ep", NULL }, { "expert_model_parallel_size", "parallel.ep", NULL },
    { "sequence_parallel", "parallel.sp", "true" }, { "bucket_cap_mb", "parallel.bucket", NULL },
    { "virtual_pipeline", "parallel.vpp", NULL },
    { "batch", "train.global_batch", NULL }, { "batch_size", "train.global_batch", NULL }, { "bs", "train.global_batch", NULL },
    { "global_batch_size", "train.global_batch", NULL }, { "micro_batch_size", "train.micro_batch", NULL },
    { "per_device_train_batch_size", "train.micro_batch", NULL }, { "device_batch_size", "train.micro_batch", NULL },
    { "gradient_accumulation_steps", "train.accumulate", NULL }, { "grad_accum", "train.accumulate", NULL },
    { "max_steps", "train.steps", NULL }, { "num_steps", "train.steps", NULL }, { "max_iters", "train.steps", NULL },
    { "train_iters", "train.steps", NULL }, { "iters", "train.steps", NULL }, { "iterations", "train.steps", NULL },
    { "epochs", "train.steps", NULL }, { "num_train_epochs", "train.steps", NULL },
    { "eval_interval", "train.eval_every", NULL }, { "eval_steps", "train.eval_every", NULL }, { "eval_iters", "train.eval_batches", NULL },
    { "random_seed", "train.seed", NULL },
    { "learning_rate", "optim.lr", NULL }, { "max_lr", "optim.lr", NULL }, { "optimizer", "optim.name", NULL },
    { "opt", "optim.name", NULL },
    { "wd", "optim.weight_decay", NULL }, { "warmup_steps", "optim.warmup", NULL }, { "warmup_iters", "optim.warmup", NULL },
    { "max_grad_norm", "optim.clip", NULL }, { "grad_clip", "optim.clip", NULL }, { "clip_grad", "optim.clip", NULL },
    { "lr_scheduler_type", "optim.schedule", NULL }, { "lr_scheduler", "optim.schedule", NULL }, { "scheduler", "optim.schedule", NULL },
    { "lr_decay_style", "optim.schedule", NULL },
    { "adam_beta1", "optim.beta1", NULL }, { "adam_beta2", "optim.beta2", NULL }, { "adam_eps", "optim.eps", NULL },
    { "bf16", "precision.compute", "bf16" }, { "fp32", "precision.compute", "fp32" }, { "dtype", "precision.compute", NULL },
    { "precision", "precision.compute", NULL }, { "mixed_precision", "precision.compute", NULL },
    { "gradient_checkpointing", "recompute.mode", "full" }, { "activation_checkpointing", "recompute.mode", "full" },
    { "recompute", "recompute.mode", NULL }, { "recompute_granularity", "recompute.mode", NULL }, { "remat", "recompute.mode", "full" },
    { "seq_length", "data.seq_len", NULL }, { "sequence_length", "data.seq_len", NULL }, { "block_size", "data.seq_len", NULL },
    { "max_seq_len", "data.seq_len", NULL }, { "max_seq_length", "data.seq_len", NULL }, { "context_length", "data.seq_len", NULL },
    { "dataset", "data.text", NULL }, { "data", "data.text", NULL }, { "data_path", "data.text", NULL },
    { "train_file", "data.text", NULL },
    { "input", "data.text", NULL }, { "file", "data.text", NULL }, { "tokenizer_type", "data.tokenizer", NULL },
    { "model", "model.preset", NULL }, { "model_name_or_path", "model.hf", NULL }, { "num_layers", "model.layers", NULL },
    { "n_layer", "model.layers", NULL }, { "n_layers", "model.layers", NULL }, { "num_hidden_layers", "model.layers", NULL },
    { "hidden_size", "model.width", NULL }, { "n_embd", "model.width", NULL }, { "d_model", "model.width", NULL },
    { "dim", "model.width", NULL },
    { "n_head", "model.heads", NULL }, { "n_heads", "model.heads", NULL }, { "num_attention_heads", "model.heads", NULL },
    { "head_size", "model.head_size", NULL }, { "head_dim", "model.head_size", NULL }, { "n_kv_head", "model.kv_heads", NULL },
    { "num_key_value_heads", "model.kv_heads", NULL }, { "intermediate_size", "model.ffn", NULL }, { "ffn_hidden_size", "model.ffn", NULL },
    { "d_ff", "model.ffn", NULL }, { "num_experts", "model.experts", NULL }, { "num_experts_per_tok", "model.experts_per_token", NULL },
    { "moe_router_topk", "model.experts_per_token", NULL }, { "top_k", "model.experts_per_token", NULL },
    { "moe_top_k", "model.experts_per_token", NULL }, { "topk", "model.experts_per_token", NULL },
    { "capacity_factor", "model.capacity", NULL }, { "moe_expert_capacity_factor", "model.capacity", NULL },
    { "max_position_embeddings", "model.max_positions", NULL },
    { "tie_word_embeddings", "model.tied", NULL },
    { "output_dir", "run.dir", NULL }, { "out_dir", "run.dir", NULL }, { "save_dir", "run.dir", NULL }, { "out", "run.dir", NULL },
    { "resume_from_checkpoint", "checkpoint.resume", NULL }, { "load", "checkpoint.resume", NULL },
    { "init_from", "checkpoint.resume", NULL }, { "save", "checkpoint.every", NULL }, { "save_interval", "checkpoint.every", NULL },
    { "save_steps", "checkpoint.every", NULL }, { "save_total_limit", "checkpoint.keep", NULL },
    { "log_interval", "log.every", NULL }, { "logging_steps", "log.every", NULL }, { "profile", "log.trace", "true" },
    { "nproc_per_node", "launch.ranks", NULL }, { "nproc", "launch.ranks", NULL }, { "np", "launch.ranks", NULL },
    { "gpus", "launch.ranks", NULL },
    { "world_size", "launch.ranks", NULL }, { "num_processes", "launch.ranks", NULL }, { "nranks", "launch.ranks", NULL },
    { "num_threads", "launch.threads", NULL }, { "nthreads", "launch.threads", NULL }, { "nccl_timeout", "launch.timeout", NULL },
};

const struct option_hint *config_hints(size_t *count)
{
    *count = COUNT_OF(hints);
    return hints;
}

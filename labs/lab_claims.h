/* lab_claims.h - what people say about distributed training: the claims that labs measure, and the program for each. W1, W2, .. are
 * statements that circulate and are wrong. A program PROGRAM is labs/PROGRAM.c; `lockstep lab` runs it. `lockstep help labs`,
 * docs/claims.md and the labs themselves read this table.
 *
 * N parameters, K data-parallel ranks, D bytes of the tensor, P stages, M micro-batches, T tensor-parallel ranks, L layers, b s d batch,
 * sequence, width. */
#ifndef LAB_CLAIMS_H
#define LAB_CLAIMS_H

#define LAB_CLAIM_MAP(X)                                                                                                            \
    X("A1", "a1_anatomy", "a layer keeps about ten tensors of b s d: 24 layers of width 2048, b = 8, s = 4096: 1.34 GB each, 32 GB")  \
    X("A2", "a2_state", "weights, gradients and Adam: 3B are 48 GB, 7B 112 GB, 70B 1.1 TB, which 14 H100 hold")                    \
    X("A3", "a3_accumulation", "accumulation does not speed up: K passes take K times one; memory and messages are what it saves") \
    X("B1", "b1_two_gradients", "a layer's backward computes dW, which needs the saved activation, and dX, which needs the weight") \
    X("B2", "b2_three_layers", "three linear layers: dL/dW1 = W2^T W3^T (h3 - y) x^T")                                              \
    X("B3", "b3_gradients", "gradients belong to parameters; backward accumulates; zero_grad clears; the optimizer never sees the loss")\
    X("B4", "b4_micro_batches", "K micro-batches with loss/K give the full batch's gradient; undivided, K times that")              \
    X("B5", "b5_depth", "long products of W^T vanish or explode")                                                                   \
    X("B6", "b6_activations", "a saved activation is a tensor kept for backward; activations are the variable part of memory")      \
    X("C1", "c1_ring", "no server is needed: ranks form a ring; all-reduce = reduce-scatter + all-gather")                          \
    X("C2", "c2_c3_bytes", "a ring all-reduce moves 2D(N-1)/N bytes per rank; reduce-scatter and all-gather half of that each")     \
    X("C3", "c2_c3_bytes", "with a central node, that node moves O(N D) bytes")                                                     \
    X("C4", "c4_c5_states", "all-reduce: full -> same sum; reduce-scatter: full -> own shard of the sum; all-gather: shard -> full")\
    X("C5", "c4_c5_states", "broadcast, all-to-all, send/receive complete the set")                                                 \
    X("C6", "c6_cost", "440 MB of weights: about 0.7 ms on NVLink (600 GB/s), about 10 ms on InfiniBand (50 GB/s)")                 \
    X("D1", "d1_exact", "the average of the shards' gradients is the full-batch gradient: exact, no approximation")                 \
    X("D2", "d2_replicas", "gradients are synchronized, not parameters; replicas stay identical")                                   \
    X("D3", "d3_overlap", "buckets of about 25 MB: all-reduce starts while earlier layers compute; only the last is waited for")    \
    X("D4", "d4_buckets", "small buckets start early but cost overhead, large ones use bandwidth but start late")                   \
    X("D5", "d5_batch", "effective batch = per-rank batch x ranks x accumulation; the minimum is the number of ranks")              \
    X("D6", "d6_sampler", "each rank sees a different shard; without the sampler all ranks do the same work")                       \
    X("D7", "d7_batch_norm", "buffers are broadcast from rank 0; SyncBatchNorm makes the statistics global")                        \
    X("D8", "d8_central", "single-process DataParallel with a central gatherer is unbalanced and slower")                           \
    X("D9", "d9_stale", "asynchronous updates use stale gradients: noisier")                                                        \
    X("E1", "e1_two_all_to_alls", "two all-to-alls per MoE layer in forward: dispatch and combine")                                 \
    X("E2", "e2_capacity", "a capacity factor caps tokens per expert and drops the rest; a loss or a bias balances the load")       \
    X("E3", "e3_hot_expert", "a hot expert is a straggler")                                                                         \
    X("E4", "e4_e5_router", "an expert takes factor x tokens x K / experts; what is above that is dropped, whatever the layout")    \
    X("E5", "e4_e5_router", "the auxiliary loss E sum f P is 1 for an even load and E if one expert gets all; a batch may be split")\
    X("F1", "f1_spike", "a loss spike: clip, warm up, roll back, skip the batch, on all ranks alike")                              \
    X("F2", "f2_logits", "fp16 logits make NaN in attention")                                                                      \
    X("F3", "f3_hang", "a hang is one rank missing: a deadline, a verdict that names it on every rank, exit code 3")                \
    X("F4", "f4_slow_rank", "one slow rank slows all: found although step times are equal, because it does not wait")               \
    X("F5", "f5_checkpoints", "checkpoints: all state and the data position, sharded; a kill at any time leaves a complete one")    \
    X("F6", "f6_reshard", "restart on another topology: a checkpoint of any layout loads under any other")                          \
    X("F7", "f7_launch", "launchers set rank, world size, master address and port, and a job finds its ranks by them")              \
    X("F8", "f8_replay", "replay a bad step from the checkpoint before it: what comes back is in the data, what does not in the machine") \
    X("F9", "f9_injected", "injected failures: one line names the rank and the cause, and the exit code says whether to start again") \
    X("L1", "l1_transports", "a collective gives the same result and sends the same bytes over any transport")                      \
    X("M1", "m1_mesh", "dp x tp x pp (x cp, ep inside) = ranks; tp inside a node, pp across nodes, dp everywhere")                  \
    X("M2", "m2_m3_planned", "70B on 256: tp 8, pp 4, dp 8: 2.2 billion parameters a rank, 4.4 GB of state")                        \
    X("M3", "m2_m3_planned", "175B on 1,024: tp 8, pp 16, dp 8: 1.37 billion a rank, 2.7 GB of weights, 21.9 GB of state, ZeRO-1 7.5") \
    X("M4", "m4_simplest", "the simplest that works: below 1B DDP, 1-10B FSDP, 10-30B tensor parallelism as well, above all three") \
    X("M5", "m5_trace_a_step", "a step of tp x pp x dp: all-reduces in layers, sends between stages, gradient sums over replicas")  \
    X("M6", "m6_side_by_side", "FSDP divides the state, TP layers and activations, PP layers; 8 ranks side by side")                \
    X("M7", "m6_side_by_side", "DDP holds 5B parameters on 80 GB; bf16 and recomputation come before any parallelism")              \
    X("P1", "p1_neighbours", "only neighboring stages communicate: activations forward, their gradients backward")                 \
    X("P2", "p2_bubble", "bubble (P-1)/(M+P-1) for GPipe and 1F1B: P=4 M=16 16%, M=32 9%; with M=1 a rank works 1/P of the time")   \
    X("P3", "p2_bubble", "GPipe holds M micro-batches of activations, 1F1B at most P: 8 times less for M=32 P=4")                   \
    X("P4", "p4_interleaving", "interleaving divides the bubble by v and costs more messages; zero-bubble fills it with dW")        \
    X("P5", "p5_uneven", "the slowest stage sets the pace: embedding and output layer count too")                                   \
    X("P6", "p6_few_messages", "few messages: P-1 sends per forward pass, against 2L all-reduces with TP")                          \
    X("P7", "p7_divides", "a pipeline of P stages divides weights, gradients, optimizer state and activations by P")                \
    X("R1", "r1_r3_half_types", "fp16 overflows above 65504: inf, then NaN; underflow stalls instead")                              \
    X("R2", "r2_loss_scaling", "dynamic loss scaling: scale, check, unscale, skip and halve on inf, grow when stable, on all ranks") \
    X("R3", "r1_r3_half_types", "bf16 has fp32's range: no loss scaling")                                                           \
    X("R4", "r4_master_weights", "without fp32 master weights, small updates round to zero and training stalls")                    \
    X("R5", "r5_fp8", "fp8: e4m3 ends at 448, e5m2 at 57344: a scale per tensor; half of bf16's bytes")                             \
    X("R6", "r6_recompute", "keep every sqrt(L)-th layer's input: O(sqrt L), 33% more compute; selective: most of the saving for little")\
    X("R7", "r7_never_stored", "logits and attention scores, b s V and O(s^2), are never materialized")                             \
    X("R8", "r8_before_parallelism", "before any parallelism: bf16, recomputation, accumulation")                                   \
    X("S1", "s1_four_reasons", "four reasons why more processors do not help: communication, bubble, starved units, data")         \
    X("S2", "s2_amdahl", "5% serial: 5.9 on 8 ranks, 15.4 on 64, 18.6 on 256, 20 at most; 2% serial: 50 on 256")                   \
    X("S3", "s3_mfu_hfu", "MFU counts useful work, HFU all work; MFU / HFU is 1 without recomputation, 3/4 with full recomputation")\
    X("S4", "s4_large_batch", "large batches: fewer updates, less noise; linear rule with warm-up, LARS, LAMB make up for it")     \
    X("S5", "s5_scaling", "DDP on 8 GPUs is 7.5 times as fast as one, 94%; what is missing follows Amdahl's law")                   \
    X("S6", "s6_diagnosis", "a run that a slow link binds: sweep ranks, overlap, buckets and topology, and send less over that link")\
    X("T1", "t1_column_row", "column-parallel: no communication forward; row: one all-reduce; column -> GeLU -> row: one for both") \
    X("T2", "t2_two_all_reduces", "heads are independent: two all-reduces per layer forward, two backward")                         \
    X("T3", "t3_bytes", "each all-reduce moves b s d, 134 MB; 2 x 40: 10.7 GB forward, 17 ms on NVLink, 200 ms on InfiniBand")      \
    X("T4", "t4_memory", "TP shards weights, optimizer state, activations; FSDP does not shard activations; a high T starves matmuls")\
    X("T5", "t5_sequence_parallel", "sequence parallelism: the same bytes (all-gather + reduce-scatter), less memory")              \
    X("T6", "t6_ring", "context parallelism shards the sequence everywhere; ring attention; causal masks need zigzag chunks")       \
    X("T7", "t7_all_to_all", "all-to-all over heads (Ulysses) is the alternative to ring attention")                                \
    X("W1", "p2_bubble", "said: the bubble of a pipeline is about 1/M")                                                             \
    X("W2", "z4_fsdp", "said: FSDP's extra gather is in forward, and its backward only reduce-scatters")      \
    X("W3", "e1_two_all_to_alls", "said: the all-to-alls of experts cannot overlap with compute")                                   \
    X("W4", "f5_checkpoints", "said: only rank 0 writes checkpoints")                                                               \
    X("Z1", "z1_sixteen", "Adam in mixed precision: 2 weights + 2 gradients + 4 master + 4 momentum + 4 variance = 16N bytes")      \
    X("Z2", "z2_shards", "ZeRO-1, 2, 3 per rank: 4N+12N/K, 2N+14N/K, 16N/K (7.5B, K=64: 120 -> 31.4 -> 16.6 -> 1.9 GB)")            \
    X("Z3", "z3_traffic", "a step moves 2N under DDP and ZeRO-1, half of that under ZeRO-2, 3N under ZeRO-3")                       \
    X("Z4", "z4_fsdp", "FSDP's peak is N/K + the gathered units, gathered twice; keeping them saves a third of the traffic")        \
    X("Z5", "z5_prefetch", "the gather of the next unit overlaps the compute of this one")                                          \
    X("Z6", "z6_offload", "offloading the optimizer state to CPU or disk: more fits, steps are slower")                             \
    X("Z7", "z7_hybrid", "hybrid sharding (HSDP): shard inside a node, replicate across nodes")                                     \
    X("Z8", "z8_seven_billion", "7B, 32 layers, K=8: 14 GB of weights under DDP; 1.75 GB + about 0.44 GB under FSDP")                 \
    X("Z9", "z9_sharding_fails", "sharding over all ranks fails on slow links and with large units; hybrid sharding is the remedy")

#endif

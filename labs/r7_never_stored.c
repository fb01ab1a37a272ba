/* R7 - the logits [B*T,V] and the attention scores [B,H,T,T] are never materialized: a step's arena is smaller than
 * either, and grows with T, not with its square. Beside it, attention of a matmul, a softmax and a matmul, which does store its scores:
 * it grows with the square. */
#include "lab.h"
#include "lockstep/nn.h"

enum { B = 2, HEADS = 4, WIDTH = 64 };

static double arena(size_t t, size_t vocab)
{
    ls_compile_options plan = { .plan_only = 1, .fuse_loss = 1 };
    ls_model m;
    ls_store *s;
    ls_program *p;

    TRY(ls_model_preset("llama-tiny", &m));
    m.layers = 1;
    m.vocab = vocab;
    m.max_positions = t;
    TRY(ls_store_new(NULL, &s));
    TRY(ls_program_new(s, &p));
    ls_value x = ls_input(p, "x", LS_I32, SIZES(B, t));
    ls_value y = ls_input(p, "y", LS_I32, SIZES(B, t));
    ls_backward(p, ls_model_loss(p, &m, x, y, LS_NONE, LS_NONE));
    TRY(ls_program_compile(p, &plan));
    double bytes = (double)ls_program_cost(p).activations;
    ls_program_release(&p);
    ls_store_release(&s);
    return bytes;
}

/* Peak of an attention that stores its scores [B,H,T,T], forward and backward. */
static double stored(size_t t)
{
    static const char *const names[] = { "q.weight", "k.weight", "v.weight" };
    ls_compile_options plan = { .plan_only = 1 };
    ls_store *s;
    ls_program *p;
    ls_value part[3];

    TRY(ls_store_new(NULL, &s));
    TRY(ls_program_new(s, &p));
    ls_value x = ls_input(p, "x", LS_F32, SIZES(B, t, WIDTH));
    for (int i = 0; i < 3; i++) {
        part[i] = ls_linear(p, x, ls_param(p, names[i], (ls_init){ LS_INIT_NORMAL, 0.1 }, SIZES(WIDTH, WIDTH)), LS_NONE);
        part[i] = ls_transpose(p, ls_reshape(p, part[i], SIZES(B, t, HEADS, WIDTH / HEADS)), 1, 2);
    }
    x = ls_matmul(p, ls_softmax(p, ls_matmul(p, part[0], ls_transpose(p, part[1], 2, 3))), part[2]);
    ls_backward(p, ls_mean(p, x, -1));
    TRY(ls_program_compile(p, &plan));
    double bytes = (double)ls_program_cost(p).live_peak;
    ls_program_release(&p);
    ls_store_release(&s);
    return bytes;
}

LAB(r7_never_stored, "logits and scores", { "seq-len", "tokens of a sample that is doubled", 8192, 4096, 65536 })
{
    size_t tokens = (size_t)lab_size("seq-len");
    double logits = (double)B * 4096 * 131072 * 4, scores = (double)B * HEADS * 16384 * 16384 * 4;
    double large_v = arena(4096, 131072), large_t = arena(16384, 32);

    lab_say("T = 4096, V = 131072:   logits %12.0f bytes, arena %12.0f\n", logits, large_v);
    lab_say("T = 16384, H = %d:      scores %12.0f bytes, arena %12.0f\n\n", HEADS, scores, large_t);
    lab_open("R7");
    lab_below("arena / bytes of the logits", 1, large_v / logits);
    lab_below("arena / bytes of the scores", 1, large_t / scores);
    lab_equal("T x 2: the arena grows by (4 where scores are held)", 2, arena(2 * tokens, 32) / arena(tokens, 32), 0.1);
    lab_check("T x 2 where scores are stored: the peak grows by", 4, stored(2 * tokens) / stored(tokens), 0.1);
    return lab_close();
}

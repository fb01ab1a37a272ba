/* ten_lines.c - the README's example: a small network learns XOR. */
#include <lockstep/nn.h>
#include <lockstep/optim.h>
#include <stdio.h>

static ls_status ten_lines_train(ls_store *store, ls_program *p, float *loss)
{
    static const float x[8] = { 0, 0, 0, 1, 1, 0, 1, 1 }, y[4] = { 0, 1, 1, 0 };
    const ls_optimizer adamw = { .kind = LS_ADAMW, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8 };
    ls_value in = ls_input(p, "x", LS_F32, 2, (size_t[]){ 4, 2 }), target = ls_input(p, "y", LS_F32, 2, (size_t[]){ 4, 1 });

    ls_backward(p, ls_output(p, "loss", ls_mse(p, ls_mlp(p, "net", in, 3, (size_t[]){ 2, 16, 1 }), target)));
    LS_TRY(ls_optimizer_append(p, &adamw));
    LS_TRY(ls_program_compile(p, NULL));
    LS_TRY(ls_program_write(p, "x", x, LS_F32, 8));
    LS_TRY(ls_program_write(p, "y", y, LS_F32, 4));
    for (int step = 1; step <= 500; step++) {
        ls_store_zero_grad(store);
        LS_TRY(ls_optimizer_set(p, &adamw, 0.02, (uint64_t)step));
        LS_TRY(ls_program_run(p, LS_FORWARD | LS_BACKWARD | LS_OPTIMIZER_STEP));
    }
    return ls_program_read(p, "loss", loss, LS_F32, 1);
}

int main(void)
{
    ls_store *store = NULL;
    ls_program *p = NULL;
    float loss = 1;
    ls_status st = ls_store_new(NULL, &store);

    if (st == LS_OK)
        st = ls_program_new(store, &p);
    if (st == LS_OK)
        st = ten_lines_train(store, p, &loss);
    if (st == LS_OK)
        printf("XOR after 500 steps: loss %.2g (0.25 is guessing)\n", loss);
    else
        fprintf(stderr, "ten_lines: %s\n", ls_errmsg());
    ls_program_release(&p);
    ls_store_release(&store);
    return st == LS_OK && loss < 0.01f ? 0 : 1;
}

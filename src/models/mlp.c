/* mlp.c - a plain multilayer perceptron. Weights are initialized uniform within 1/sqrt(inputs), as PyTorch's Linear. */
#include "lockstep/nn.h"

#include <math.h>
#include <stdio.h>
#include "base/base.h"
#include "ir/builder.h"

static ls_value mlp_layer(ls_program *p, const char *name, int i, ls_value x, size_t in, size_t out)
{
    ls_init init = { LS_INIT_UNIFORM, 1.0 / sqrt((double)in) };
    char text[128];

    snprintf(text, sizeof text, "%s.%d.weight", name, i);
    ls_value w = ls_param(p, text, init, 2, (size_t[]){ out, in });
    snprintf(text, sizeof text, "%s.%d.bias", name, i);
    ls_value b = ls_param(p, text, init, 1, (size_t[]){ out });
    return ls_linear(p, x, w, b);
}

ls_value ls_mlp(ls_program *p, const char *name, ls_value x, int n, const size_t *sizes)
{
    if (n < 2) return program_fail(p, "mlp '%s': %d sizes; at least 2 are required, for input and output", name, n);
    if (snprintf(NULL, 0, "%s", name) > 96) return program_fail(p, "mlp '%s': the name is longer than 96 characters", name);
    for (int i = 0; i < n; i++)
        if (sizes[i] == 0) return program_fail(p, "mlp '%s': size %d of %d is 0", name, i, n);
    for (int i = 0; i + 1 < n; i++) {
        x = mlp_layer(p, name, i, x, sizes[i], sizes[i + 1]);
        if (i + 2 < n) x = ls_relu(p, x);
    }
    return x;
}

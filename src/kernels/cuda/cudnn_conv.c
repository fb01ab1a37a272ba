/* cudnn_conv.c - see cudnn_conv.h.
 *
 * cuDNN writes a weight gradient in the type of its operands. That of half types is to be a sum in f32, so it is computed from operands
 * converted to f32, on TF32's tensor cores: bf16 and f16 have no more digits than TF32, so nothing is rounded.
 */
#include "kernels/cuda/cudnn_conv.h"

enum { CHANNELS = 8, ROOM = 16 << 20 }; /* ROOM: bytes of workspace for sums of parts, in addition to one copy of each operand */

const struct view *cudnn_conv_operand(const struct call *c, int at, bool *written)
{
    static const struct {
        signed char in[3]; /* by CONV_..: the input, or -1: the output */
    } operands[] = { { { 0, 1, -1 } }, { { -1, 1, 0 } }, { { 1, -1, 0 } } };
    int in = operands[c->op == OP_CONV2D ? 0 : c->op == OP_CONV2D_DX ? 1 : 2].in[at];

    *written = in < 0;
    return in < 0 ? &c->out[0] : &c->in[in];
}

ls_dtype cudnn_conv_type(const struct call *c) { return c->op == OP_CONV2D_DW ? LS_F32 : c->in[0].dtype; }

bool cudnn_conv_accepts(const struct call *c)
{
    ls_dtype type = c->in[0].dtype;
    bool written;

    if ((type != LS_F32 && type != LS_BF16 && type != LS_F16) || (c->op == OP_CONV2D && call_has_in(c, 2))) return false;
    for (int at = CONV_X; at <= CONV_Y; at++) {
        const struct view *v = cudnn_conv_operand(c, at, &written);
        bool typed = v->dtype == type || (written && c->op == OP_CONV2D_DW && v->dtype == LS_F32);

        if (!typed || !view_is_contiguous(v) || view_count(v) == 0 || view_count(v) > INT32_MAX) return false;
    }
    return true;
}

struct cudnn_graph *cudnn_conv_graph(const struct call *c)
{
    cudnnBackendDescriptorType_t kind = c->op == OP_CONV2D      ? CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR
                                        : c->op == OP_CONV2D_DX ? CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR
                                                                : CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR;
    struct cudnn_graph *g = cudnn_graph_new();
    int tensor[3];
    bool written;

    if (!g) return NULL;
    for (int at = CONV_X; at <= CONV_Y; at++) {
        const size_t *n = cudnn_conv_operand(c, at, &written)->size;
        struct cudnn_operand x =
            cudnn_contiguous(cudnn_type(cudnn_conv_type(c)), (int64_t)n[0], (int64_t)n[1], (int64_t)n[2], (int64_t)n[3]);

        tensor[at] = cudnn_graph_operand(g, &x, at);
    }
    cudnn_graph_convolution(g, kind, tensor[CONV_X], tensor[CONV_W], tensor[CONV_Y], (int64_t)c->attr.conv.stride,
                            (int64_t)c->attr.conv.padding);
    return g;
}

static size_t channels_padded(size_t n) { return (n + CHANNELS - 1) / CHANNELS * CHANNELS; }

/* Copies with the channels last have them padded. */
size_t cudnn_conv_workspace(const struct call *c)
{
    size_t bytes = ROOM;
    bool written;

    for (int at = CONV_X; at <= CONV_Y; at++) {
        const size_t *n = cudnn_conv_operand(c, at, &written)->size;

        bytes += (at == CONV_W ? channels_padded(n[0]) : n[0]) * channels_padded(n[1]) * n[2] * n[3] * ls_dtype_bytes(cudnn_conv_type(c));
    }
    return bytes;
}

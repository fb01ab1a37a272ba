/* helper_nn.h - model presets for tests. */
#ifndef LS_TESTS_HELPER_NN_H
#define LS_TESTS_HELPER_NN_H

#include "lockstep/nn.h"
#include "models/model.h"

ls_model nn_preset(const char *name);

#define NN_GPT2_CONFIG "{\"architectures\":[\"GPT2LMHeadModel\"],\"n_layer\":2,\"n_embd\":8,\"n_head\":2,\"vocab_size\":11," \
             "\"n_positions\":16"

#endif

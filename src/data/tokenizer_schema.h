/* tokenizer_schema.h - the types of what tokenizer.json holds, checked before anything of it is used. */
#ifndef LS_DATA_TOKENIZER_SCHEMA_H
#define LS_DATA_TOKENIZER_SCHEMA_H

#include "base/json.h"

/* LS_EFORMAT names the first field that is missing or of another type than Hugging Face's tokenizers reads. What is of the right type
 * but not supported is the reader's to refuse. */
ls_status tokenizer_schema_check(const json_node *root);

#endif

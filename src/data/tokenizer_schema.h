/* tokenizer_schema.h - checks the types of everything in tokenizer.json before anything is used. */
#ifndef LS_DATA_TOKENIZER_SCHEMA_H
#define LS_DATA_TOKENIZER_SCHEMA_H

#include "base/json.h"

/* LS_EFORMAT names the first field that is missing or has another type than Hugging Face's tokenizers expects. The reader rejects values of
 * the right type that are not supported. */
ls_status tokenizer_schema_check(const json_node *root);

#endif

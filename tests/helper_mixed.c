/* helper_mixed.c - see tools/tokenizer_fixtures.py: Draw, item, line, point_texts, hash_ids. */
#include "helper_mixed.h"

#include <stdio.h>
#include <string.h>
#include "data/utf8.h"

struct draw { uint64_t at; const json_node *fragments; char *out; size_t n; };

static uint32_t below(struct draw *d, uint32_t n)
{
    uint64_t z = ++d->at * 0x9E3779B97F4A7C15u;

    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (uint32_t)(((z ^ z >> 31) >> 16) % n);
}

static void put(struct draw *d, const char *text)
{
    size_t n = strlen(text);

    memcpy(d->out + d->n, text, n);
    d->n += n;
}

static void point(struct draw *d, uint32_t first, uint32_t last)
{
    uint32_t c = first + below(d, last - first + 1);

    if (c != 0 && (c < 0xd800 || c >= 0xe000)) d->n += utf8_encode(c, (unsigned char *)d->out + d->n);
}

static void points(struct draw *d, uint32_t first, uint32_t last, uint32_t most)
{
    for (uint32_t i = 1 + below(d, most); i > 0; i--) point(d, first, last);
}

static void pick(struct draw *d, const char *kind)
{
    const json_node *list = json_get(d->fragments, kind);

    put(d, json_string(json_at(list, below(d, (uint32_t)json_size(list))), ""));
}

static void mixed_draw_run(struct draw *d)
{
    static const char *const of[] = { "a", " ", "=", "ab", "\xc3\xa9", "\n", "0", "\xf0\x9f\x98\x80" };
    const char *what = of[below(d, 8)];

    for (uint32_t i = 1 + below(d, 120); i > 0; i--) put(d, what);
}

static void item(struct draw *d)
{
    static const char *const behind_emoji[] = { "", "\xe2\x80\x8d", "\xef\xb8\x8f", "\xf0\x9f\x8f\xbd" };

    switch (below(d, 20)) {
    case 0: case 1: case 2: case 3: case 4:
        if (below(d, 4)) put(d, " ");
        pick(d, "word");
        break;
    case 5: points(d, 'a', 'z', 10); break;
    case 6: pick(d, "word"); pick(d, "contraction"); break;
    case 7: points(d, '0', '9', 7); break;
    case 8: for (uint32_t i = 1 + below(d, 5); i > 0; i--) put(d, " "); break;
    case 9: pick(d, "space"); pick(d, "space"); break;
    case 10: point(d, 1, 0x10ffff); break;
    case 11: points(d, 0x80, 0x2fff, 3); break;
    case 12: point(d, 0x1f300, 0x1faff); put(d, behind_emoji[below(d, 4)]); break;
    case 13: points(d, 'A', 'z', 2); points(d, 0x300, 0x36f, 3); break;
    case 14: points(d, 0x1100, 0x11ff, 3); points(d, 0xac00, 0xd7a3, 3); break;
    case 15: points(d, 0x4e00, 0x9fff, 6); break;
    case 16: pick(d, "code"); break;
    case 17: points(d, 0x21, 0x40, 4); break;
    case 18: points(d, 0x10000, 0x1ffff, 2); break;
    default: mixed_draw_run(d);
    }
}

size_t mixed_line(const json_node *fragments, uint64_t n, char *out)
{
    struct draw d = { n << 20, fragments, out, 0 };

    for (uint32_t i = below(&d, 24); i > 0; i--) item(&d);
    return d.n;
}

size_t mixed_points(uint32_t block, char *out)
{
    static const char *const before[] = { "x", "X ", " 1", "'", "\n" };
    struct draw d = { .out = out };

    for (uint32_t c = block << 8; c < (block + 1) << 8; c++) {
        char x[5] = "";

        if (c == 0 || (c >= 0xd800 && c < 0xe000)) continue;
        if (c >= 0x3400 && (c < 0xa000 || c >= 0x20000) && c % 64) continue;
        utf8_encode(c, (unsigned char *)x);
        for (size_t i = 0; i < 5; i++) {
            put(&d, before[i]);
            put(&d, x);
        }
    }
    return d.n;
}

void mixed_hash_start(struct mixed_hash *h) { h->value = 0xcbf29ce484222325u; }

void mixed_hash_ids(struct mixed_hash *h, const int32_t *ids, size_t count)
{
    for (size_t i = 0; i < count; i++) h->value = (h->value ^ (uint32_t)ids[i]) * 0x100000001b3u;
    h->value = (h->value ^ 0xffffffffu) * 0x100000001b3u;
}

void mixed_hash_text(const struct mixed_hash *h, char out[17])
{
    snprintf(out, 17, "%016llx", (unsigned long long)h->value);
}

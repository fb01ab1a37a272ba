/* emulator_warp.cc - shuffles, votes and __syncwarp: the lanes of a mask wait for each other. */
#include "emulator_state.h"

#include <vector>

static fiber *lane_of(int warp, int lane)
{
    int i = warp * WARP + lane;

    return i < emulator_block.threads ? &emulator_fibers[i] : NULL;
}

static bool lane_is_here(const fiber *f, const fiber *first)
{
    return f && f->state == FIBER_WARP && f->op == first->op && f->mask == first->mask && f->line == first->line &&
           (f->file == first->file || strcmp(f->file, first->file) == 0);
}

static unsigned warp_ballot(const fiber *first)
{
    unsigned bits = 0;

    for (int lane = 0; lane < WARP; lane++)
        if (first->mask >> lane & 1 && lane_of(first->warp, lane)->value) bits |= 1u << lane;
    return bits;
}

/* Each lane of the mask has seen what all of them had done. */
static void warp_join(const fiber *first)
{
    uint32_t seen[WARP] = { 0 };

    for (int lane = 0; lane < WARP; lane++) {
        const uint32_t *of = emulator_fibers[first->warp * WARP + lane].clock;

        if (!(first->mask >> lane & 1)) continue;
        for (int k = 0; k < WARP; k++) seen[k] = of[k] > seen[k] ? of[k] : seen[k];
    }
    for (int lane = 0; lane < WARP; lane++) {
        if (!(first->mask >> lane & 1)) continue;
        memcpy(lane_of(first->warp, lane)->clock, seen, sizeof seen);
        lane_of(first->warp, lane)->clock[lane]++;
    }
}

static void warp_compute(const fiber *first)
{
    uint64_t value[WARP];

    for (int lane = 0; lane < WARP; lane++) value[lane] = lane_of(first->warp, lane)->value;
    emulator_warp_compute(first->op, value);
}

static const char *const op_names[] = { "a shuffle", "a vote", "__syncwarp", "mma", "mma", "ldmatrix", "ldmatrix" };

/* What lanes of a warp wait for: each of its masks is complete after as many arrivals as it has lanes. */
struct meeting {
    const fiber *first;
    unsigned here;
};
static std::vector<meeting> meetings[MOST_WARPS];

void warp_block_begin(void)
{
    for (int warp = 0; warp < MOST_WARPS; warp++) meetings[warp].clear();
}

/* Adds the running lane to its meeting; true: it was the last one. */
static bool warp_arrive(const fiber *self)
{
    std::vector<meeting> &all = meetings[self->warp];

    for (size_t i = 0; i < all.size(); i++) {
        if (!lane_is_here(self, all[i].first)) continue;
        all[i].here |= 1u << self->lane;
        if (all[i].here != self->mask) return false;
        all.erase(all.begin() + (ptrdiff_t)i);
        return true;
    }
    if (self->mask == 1u << self->lane) return true;
    all.push_back({ self, 1u << self->lane });
    return false;
}

uint64_t emulator_warp(emulator_warp_op op, unsigned mask, uint64_t value, int from, const char *file, int line)
{
    fiber *self = emulator_now;
    unsigned bits = 0;

    self->op = op;
    self->mask = mask;
    self->value = value;
    self->from = from;
    self->file = file;
    self->line = line;
    self->state = FIBER_WARP;
    if (!(mask >> self->lane & 1))
        emulator_fail("%s at %s:%d: lane %d calls it, but the mask 0x%08x lacks it", op_names[op], file, line, self->lane, mask);
    if (op == EMULATOR_SHUFFLE && !(mask >> from & 1))
        emulator_fail("%s at %s:%d: lane %d reads lane %d, which the mask 0x%08x lacks", op_names[op], file, line, self->lane, from, mask);
    if (!warp_arrive(self)) {
        fiber_wait(FIBER_WARP, file, line);
        return self->result;
    }
    if (op == EMULATOR_SYNC) warp_join(self);
    if (op == EMULATOR_BALLOT) bits = warp_ballot(self);
    if (op >= EMULATOR_MMA_BF16) warp_compute(self);
    for (int lane = 0; lane < WARP; lane++) {
        fiber *f = lane_of(self->warp, lane);

        if (!(mask >> lane & 1)) continue;
        f->result = op == EMULATOR_BALLOT ? bits : op == EMULATOR_SHUFFLE ? lane_of(self->warp, f->from)->value : 0;
    }
    for (int lane = 0; lane < WARP; lane++)
        if (mask >> lane & 1 && lane != self->lane) fiber_make_ready(lane_of(self->warp, lane));
    self->state = FIBER_READY;
    return self->result;
}

void warp_explain(const fiber *f)
{
    for (int lane = 0; lane < WARP; lane++) {
        const fiber *other = lane_of(f->warp, lane);

        if (!(f->mask >> lane & 1) || lane_is_here(other, f)) continue;
        if (!other || other->state == FIBER_DONE)
            emulator_note(f, "%s at %s:%d: lane %d of the mask 0x%08x %s", op_names[f->op], f->file, f->line, lane, f->mask,
                          other ? "has ended" : "is not in the block");
        else
            emulator_note(f, "%s at %s:%d: lane %d of the mask 0x%08x waits at %s:%d", op_names[f->op], f->file, f->line, lane, f->mask,
                          other->file, other->line);
    }
}

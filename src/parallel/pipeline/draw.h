/* draw.h - helpers shared by the text and SVG drawings of a simulated schedule. */
#ifndef LS_PARALLEL_PIPELINE_DRAW_H
#define LS_PARALLEL_PIPELINE_DRAW_H

#include "base/text.h"
#include "parallel/pipeline/schedule.h"

/* "F3"; with several chunks "Fa3" for chunks a, b, ..; "F26.3" from the 27th chunk on. Returns out. */
char *draw_label(char out[32], const ls_pipeline_schedule *s, const ls_action *a);
/* "1f1b: 4 ranks, 8 micro-batches" */
void draw_title(struct text *t, const ls_pipeline_schedule *s);
/* "bubble 27.3% (equal stages: 27.3%)" */
void draw_bubble(struct text *t, const ls_pipeline_schedule *s, const ls_pipeline_times *times, const ls_pipeline_timeline *p);
/* "virtual stages 0, 4": for a rank with two or more chunks */
void draw_stages(struct text *t, const ls_pipeline_schedule *s, int rank);
/* The duration in seconds of the shortest action of nonzero duration; 1 if there is none. */
double draw_shortest(const ls_pipeline_schedule *s, const ls_pipeline_times *times);

#endif

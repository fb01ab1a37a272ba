/* plan_draw.c - draws a layout for `lockstep plan`. */
#include "cli/plan_draw.h"

#include <stdio.h>
#include <string.h>
#include "base/file.h"
#include "cli/terminal.h"
#include "lockstep/pipeline.h"
#include "lockstep/program.h"

ls_status plan_draw_mesh(const struct config *c, int machine)
{
    ls_layout layout;
    char *text;

    LS_TRY(config_layout(c, &layout));
    ls_mesh_shape shape = ls_layout_mesh(&layout);
    LS_TRY(ls_mesh_text(&shape, machine, &text));
    fputs(text, stdout);
    ls_free(text);
    return LS_OK;
}

static ls_status draw_into(const ls_pipeline_schedule *s, const char *path)
{
    char *svg;

    LS_TRY(ls_pipeline_svg(s, NULL, &svg));
    ls_status st = file_write(path, svg, strlen(svg));
    ls_free(svg);
    return st;
}

ls_status plan_draw_schedule(const struct config *c, const char *svg)
{
    ls_pipeline_schedule s;
    ls_layout layout;
    char *text;

    LS_TRY(config_layout(c, &layout));
    LS_TRY(ls_layout_schedule(&layout, &s));
    ls_status st = ls_pipeline_text(&s, NULL, terminal_width(), terminal_style(STYLE_BOLD)[0] != '\0', &text);
    if (st >= 0) {
        fputs(text, stdout);
        ls_free(text);
    }
    if (st >= 0 && svg) st = draw_into(&s, svg);
    ls_pipeline_schedule_free(&s);
    return st;
}

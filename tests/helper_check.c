#include "helper_check.h"

#include <string.h>

void check_accepted(ls_status got, const char *call, const char *file, int line)
{
    if (got >= 0)
        return;
    print_error("%s: %s\n", call, ls_errmsg());
    _fail(file, line);
}

void check_refused(ls_status got, ls_status want, const char *text, const char *call, const char *file, int line)
{
    if ((want < 0 ? got == want : got < 0) && strstr(ls_errmsg(), text) && !strchr(ls_errmsg(), '\n'))
        return;
    print_error("%s: status %d, \"%s\"; expected %d, \"...%s...\"\n", call, (int)got, got < 0 ? ls_errmsg() : "", (int)want, text);
    _fail(file, line);
}

/* page.c - a page through ncurses, or as plain lines. */
#include "learn/page.h"

#include <curses.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/text.h"

enum { PLAIN_WIDTH = 80, TITLE_ROOM = 160, TICK_MS = 250, KEY_ESCAPE = 27, KEY_CONTROL_D = 4, LINES_MOST = 4096, TYPING_ROOM = 12 };

struct paragraph {
    char *text;
    enum page_style style;
};

/* A row of the screen: a part of a paragraph. */
struct page_row {
    const char *text;
    int bytes;
    enum page_style style;
};

struct page {
    bool full; /* ncurses */
    char title[TITLE_ROOM];
    struct paragraph *paragraph;
    int count, room, scroll; /* scroll: rows up from the end */
};

/* ---- wrapping ---- */

static size_t char_bytes(const char *s)
{
    size_t n = text_utf8(s, NULL);

    return n ? n : 1;
}

/* Bytes of s that fit into `width` columns, up to a space if it goes on. A character is one column. */
static int page_fit(const char *s, int width, bool wrap)
{
    int at = 0, space = 0, columns = 0;

    while (s[at] && columns < width) {
        if (s[at] == ' ') space = at;
        at += (int)char_bytes(s + at), columns++;
    }
    return !s[at] || s[at] == ' ' || !wrap || !space ? at : space;
}

/* Cuts a text into rows; calls put for each. An empty text is one empty row. */
static void wrap_text(const char *s, enum page_style style, int width, void (*put)(void *ctx, struct page_row r), void *ctx)
{
    do {
        int n = page_fit(s, width, style != PAGE_COLUMNS);

        put(ctx, (struct page_row){ s, n, style });
        s += style == PAGE_COLUMNS ? (int)strlen(s) : n;
        s += strspn(s, " ");
    } while (*s);
}

/* ---- plain lines ---- */

static void put_plain_row(void *ctx, struct page_row r)
{
    (void)ctx;
    printf("%.*s\n", r.bytes, r.text);
}

static bool ask_plain(const char *prompt, char *line, size_t room)
{
    printf("%s ", prompt);
    fflush(stdout);
    if (!fgets(line, (int)room, stdin)) {
        putchar('\n');
        return false;
    }
    if (!strchr(line, '\n'))
        for (int c = getchar(); c != EOF && c != '\n';) c = getchar(); /* what does not fit is dropped */
    line[strcspn(line, "\r\n")] = '\0';
    if (!isatty(STDIN_FILENO)) printf("%s\n", line); /* a terminal has shown it */
    return true;
}

/* ---- the screen ---- */

struct page_rows {
    struct page_row row[LINES_MOST];
    int count;
};

static void keep_row(void *ctx, struct page_row r)
{
    struct page_rows *all = ctx;

    if (all->count < LINES_MOST) all->row[all->count++] = r;
}

/* ncurses learns of a new size from a key only; a run that prints does not wait for keys. */
static void follow_size(void)
{
    struct winsize size;

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || !size.ws_row || !size.ws_col) return;
    if (size.ws_row != LINES || size.ws_col != COLS) resizeterm(size.ws_row, size.ws_col);
}

static attr_t attribute_of(enum page_style s) { return s == PAGE_BOLD ? A_BOLD : s == PAGE_DIM ? A_DIM : A_NORMAL; }

static void draw_row(int y, struct page_row r)
{
    attrset(attribute_of(r.style));
    mvaddnstr(y, 0, r.text, r.bytes);
    attrset(A_NORMAL);
}

static void draw_title(const struct page *p, bool above, bool below)
{
    const char *more = above && below ? " (up, down: more) " : above ? " (up: more) " : below ? " (down: more) " : "";
    char line[TITLE_ROOM + 1];

    snprintf(line, sizeof line, " %s", p->title);
    attrset(A_REVERSE);
    mvhline(0, 0, ' ', COLS);
    mvaddnstr(0, 0, line, page_fit(line, COLS, false));
    mvaddstr(0, MAX(COLS - (int)strlen(more), 0), more);
    attrset(A_NORMAL);
}

static int columns_of(const char *s)
{
    int columns = 0;

    for (; *s; s += char_bytes(s)) columns++;
    return columns;
}

/* Whether a prompt leaves room to type beside it; if not, it has rows of its own above. */
static bool is_short(const char *prompt) { return columns_of(prompt) + TYPING_ROOM <= COLS; }

/* In the last row; the end of what is typed, if not all of it fits. */
static void draw_prompt(const char *prompt, const char *typed)
{
    int at = 0, columns = columns_of(typed);

    mvaddstr(LINES - 1, 0, is_short(prompt) ? prompt : ">");
    addch(' ');
    int left = COLS - 2 - getcurx(stdscr);
    while (columns > MAX(left, 1)) at += (int)char_bytes(typed + at), columns--;
    addstr(typed + at);
}

static void draw_page(struct page *p, const char *prompt, const char *typed)
{
    static struct page_rows all;

    follow_size();
    erase();
    all.count = 0;
    for (int i = 0; i < p->count; i++) wrap_text(p->paragraph[i].text, p->paragraph[i].style, MAX(COLS - 1, 8), keep_row, &all);
    int text = all.count;
    if (prompt && !is_short(prompt)) wrap_text(prompt, PAGE_BOLD, MAX(COLS - 1, 8), keep_row, &all);
    int above = all.count - text, fits = MAX(LINES - 3 - above, 1), most = MAX(text - fits, 0);
    p->scroll = MIN(MAX(p->scroll, 0), most);
    int first = most - p->scroll;
    for (int i = 0; i < fits && first + i < text; i++) draw_row(i + 1, all.row[first + i]);
    for (int i = 0; i < above; i++) draw_row(LINES - 1 - above + i, all.row[text + i]);
    draw_title(p, first > 0, p->scroll > 0);
    if (prompt) draw_prompt(prompt, typed);
    refresh();
}

static void erase_last(char *line)
{
    size_t n = strlen(line);

    while (n && ((unsigned char)line[--n] & 0xC0) == 0x80) continue;
    line[n] = '\0';
}

static void type_key(char *line, size_t room, int key)
{
    size_t n = strlen(line);

    if (key >= ' ' && key < 256 && key != 127 && n + 1 < room) line[n] = (char)key, line[n + 1] = '\0';
}

/* Drops the rest of a key's sequence, or of a paste. */
static void drop_sequence(void)
{
    nodelay(stdscr, TRUE);
    while (getch() != ERR) continue;
    nodelay(stdscr, FALSE);
}

/* Whether the terminal has been closed: then getch() fails at once, again and again. */
static bool is_gone(void)
{
    struct pollfd in = { .fd = STDIN_FILENO, .events = POLLIN };

    return poll(&in, 1, 0) < 0 || (in.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
}

static bool ask_full(struct page *p, const char *prompt, double (*seconds_left)(void *), void *ctx, char *line, size_t room)
{
    char clock[TITLE_ROOM];

    line[0] = '\0';
    for (;;) {
        double left = seconds_left ? seconds_left(ctx) : 0;

        if (seconds_left)
            snprintf(clock, sizeof clock, "%s%d:%02d  %s", left < 0 ? "+" : "", abs((int)left) / 60, abs((int)left) % 60, prompt);
        draw_page(p, seconds_left ? clock : prompt, line);
        timeout(seconds_left ? TICK_MS : -1);
        int key = getch();
        switch (key) {
        case '\n':
        case '\r':
        case KEY_ENTER: return true;
        case KEY_CONTROL_D: return false;
        case KEY_ESCAPE:
            drop_sequence();
            line[0] = '\0';
            break;
        case KEY_BACKSPACE:
        case 127:
        case 8: erase_last(line); break;
        case KEY_UP: p->scroll++; break;
        case KEY_DOWN: p->scroll--; break;
        case KEY_PPAGE: p->scroll += LINES - 4; break;
        case KEY_NPAGE: p->scroll -= LINES - 4; break;
        case ERR:
            if (!seconds_left || is_gone()) return false;
            break;
        default: type_key(line, room, key);
        }
    }
}

/* ---- both ---- */

static bool is_full(void)
{
    const char *term = getenv("TERM");

    return isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && term && term[0] && strcmp(term, "dumb") != 0;
}

ls_status page_open(page **out)
{
    page *p = mem_zalloc(MEM_OTHER, sizeof *p);

    if (!(*out = p)) return LS_ENOMEM;
    p->full = is_full();
    if (!p->full) return LS_OK;
    if (!setlocale(LC_CTYPE, "C.UTF-8")) setlocale(LC_CTYPE, "");
    SCREEN *screen = newterm(NULL, stdout, stdin);
    if (!screen) {
        p->full = false;
        return LS_OK;
    }
    cbreak();
    noecho();
    keypad(stdscr, TRUE);
    set_escdelay(50);
    signal(SIGQUIT, SIG_IGN); /* curses restores the terminal on ^C, but not on ^\ */
    return LS_OK;
}

static void empty_page(page *p)
{
    for (int i = 0; i < p->count; i++) mem_free(p->paragraph[i].text);
    p->count = p->scroll = 0;
}

void page_close(page **p)
{
    if (!*p) return;
    if ((*p)->full) {
        endwin();
        signal(SIGQUIT, SIG_DFL);
    }
    empty_page(*p);
    mem_free((*p)->paragraph);
    mem_free(*p);
    *p = NULL;
}

void page_forget_keys(page *p)
{
    if (p->full) flushinp();
}

void page_title(page *p, const char *fmt, ...)
{
    va_list a;

    va_start(a, fmt);
    vsnprintf(p->title, sizeof p->title, fmt, a);
    va_end(a);
    if (!p->full) {
        printf("\n== %s ==\n", p->title);
        return;
    }
    empty_page(p);
    draw_page(p, NULL, "");
}

static void keep_paragraph(page *p, enum page_style style, const char *text)
{
    if (p->count == p->room) {
        int room = p->room ? 2 * p->room : 64;
        struct paragraph *more = mem_resize(p->paragraph, (size_t)room * sizeof *more);

        if (!more) return;
        p->paragraph = more;
        p->room = room;
    }
    char *copy = mem_strdup(text);
    if (copy) p->paragraph[p->count++] = (struct paragraph){ copy, style };
}

void page_put(page *p, enum page_style style, const char *fmt, ...)
{
    char small[1024], *text = small;
    va_list a;

    va_start(a, fmt);
    int n = vsnprintf(small, sizeof small, fmt, a);
    va_end(a);
    if (n >= (int)sizeof small && (text = mem_alloc(MEM_OTHER, (size_t)n + 1))) {
        va_start(a, fmt);
        vsnprintf(text, (size_t)n + 1, fmt, a);
        va_end(a);
    }
    if (!text) return;
    if (p->full) {
        keep_paragraph(p, style, text);
        p->scroll = 0;
        draw_page(p, NULL, "");
    } else {
        wrap_text(text, style, style == PAGE_COLUMNS ? 1 << 20 : PLAIN_WIDTH, put_plain_row, NULL);
        fflush(stdout);
    }
    if (text != small) mem_free(text);
}

bool page_ask(page *p, const char *prompt, double (*seconds_left)(void *), void *ctx, char *line, size_t room)
{
    return p->full ? ask_full(p, prompt, seconds_left, ctx, line, room) : ask_plain(prompt, line, room);
}

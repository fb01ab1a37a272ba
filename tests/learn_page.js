/* learn_page.js - test_learn_page.sh appends this to copies of the exported page, each in a frame. It opens every card, looks at what the
 * browser laid out, and sends the frame's name with what it counted and what is wrong to the page of frames. */
addEventListener('load', function () {
    var wrong = [], lowest = Infinity, texts = 0;

    function complain(what) { if (wrong.indexOf(what) < 0) wrong.push(what); }

    /* ---- colors: [red, green, blue, alpha] ---- */

    function color(text) {
        var c = (text.match(/[\d.]+/g) || [0, 0, 0, 0]).map(Number);
        return [c[0], c[1], c[2], c.length > 3 ? c[3] : 1];
    }
    function over(front, back, opacity) {
        var a = front[3] * opacity;
        return [0, 1, 2].map(function (i) { return a * front[i] + (1 - a) * back[i]; }).concat(1);
    }
    function luminance(c) {
        var l = c.slice(0, 3).map(function (v) { return v <= 10.31 ? v / 255 / 12.92 : Math.pow((v / 255 + 0.055) / 1.055, 2.4); });
        return 0.2126 * l[0] + 0.7152 * l[1] + 0.0722 * l[2];
    }
    function contrast(a, b) {
        var x = luminance(a) + 0.05, y = luminance(b) + 0.05;
        return Math.max(x, y) / Math.min(x, y);
    }
    /* Those of a window without a page: Canvas is white or dark. */
    function canvas() {
        var e = document.createElement('i');
        e.style.backgroundColor = 'Canvas';
        document.body.append(e);
        var c = color(getComputedStyle(e).backgroundColor);
        e.remove();
        return c;
    }
    var empty = canvas();
    function background(e) {
        return e ? over(color(getComputedStyle(e).backgroundColor), background(e.parentElement), 1) : empty;
    }
    function opacity(e) { return e ? Number(getComputedStyle(e).opacity) * opacity(e.parentElement) : 1; }

    /* ---- text ---- */

    function inside(text, box) {
        var t = text.getBoundingClientRect(), b = box.getBoundingClientRect(), x = (t.left + t.right) / 2, y = (t.top + t.bottom) / 2;
        return b.left <= x && x <= b.right && b.top <= y && y <= b.bottom;
    }
    /* What a picture's text is drawn on: the last box before it that is below its middle. */
    function below(text, svg) {
        var c = background(svg);
        svg.querySelectorAll('rect').forEach(function (box) {
            if (box.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_FOLLOWING && inside(text, box))
                c = over(color(getComputedStyle(box).fill), c, 1);
        });
        return c;
    }
    function judge(e, front, back, size, least) {
        var c = contrast(over(front, back, opacity(e)), back), shown = '"' + e.textContent.trim().slice(0, 30) + '"';
        texts++;
        lowest = Math.min(lowest, c);
        if (c < 4.5) complain('contrast: ' + c.toFixed(2) + ' of ' + shown);
        if (size < least) complain('small: ' + size.toFixed(1) + ' pixels, the text ' + shown);
    }
    function judge_page(e) {
        var own = Array.from(e.childNodes).some(function (n) { return n.nodeType === Node.TEXT_NODE && n.data.trim(); });
        var s = getComputedStyle(e);
        if (own && e.checkVisibility()) judge(e, color(s.color), background(e), parseFloat(s.fontSize), 12);
    }
    function judge_picture(svg) {
        var r = svg.getBoundingClientRect(), scale = r.width / svg.viewBox.baseVal.width;
        if (!(r.width > 0 && r.height > 0)) complain('size: a picture of ' + r.width + ' x ' + r.height + ' pixels');
        svg.querySelectorAll('text').forEach(function (e) {
            var s = getComputedStyle(e);
            judge(e, color(s.fill), below(e, svg), scale * parseFloat(s.fontSize), 9);
        });
    }

    /* ---- the page ---- */

    function judge_width(state) {
        var d = document.documentElement;
        if (d.scrollWidth > d.clientWidth) complain('wide: ' + d.scrollWidth + ' of ' + d.clientWidth + ' pixels, cards ' + state);
    }
    function judge_card(card) {
        var text = card.querySelector('dl');
        if (card.open || text.checkVisibility()) complain('shut: ' + card.id + ' is open before the click');
        card.querySelector('summary').click();
        if (!card.open || !text.checkVisibility() || text.getBoundingClientRect().height < 20)
            complain('shut: ' + card.id + ' does not open');
        card.querySelectorAll('*').forEach(function (e) {
            var beyond = e.getBoundingClientRect().right - card.getBoundingClientRect().right;
            if (beyond > 0)
                complain('card: ' + e.localName + ' of ' + card.id + ' ends ' + beyond.toFixed(0) + ' pixels right of the card');
        });
    }
    function judge_outside() {
        performance.getEntriesByType('resource').forEach(function (r) { complain('outside: ' + r.name); });
        document.querySelectorAll('[src],[srcset],[href],[data]').forEach(function (e) {
            ['src', 'srcset', 'href', 'data'].forEach(function (a) {
                var to = e.getAttribute(a);
                if (to && !/^#/.test(to)) complain('outside: ' + a + '=' + to);
                if (/^#/.test(to || '') && !document.getElementById(to.slice(1))) complain('outside: the page has no ' + to);
            });
        });
    }

    var cards = document.querySelectorAll('details'), pictures = document.querySelectorAll('figure svg');
    judge_outside();
    judge_width('shut');
    cards.forEach(judge_card);
    judge_width('open');
    document.querySelectorAll('body, body *:not(script):not(style)').forEach(function (e) { if (!e.closest('svg')) judge_page(e); });
    pictures.forEach(judge_picture);
    parent.postMessage(['width ' + document.documentElement.clientWidth, 'cards ' + cards.length, 'pictures ' + pictures.length,
        'texts ' + texts, 'lowest ' + lowest.toFixed(2), 'background ' + background(document.body).slice(0, 3).join(',')]
        .concat(wrong.map(function (w) { return 'wrong ' + w; }))
        .map(function (line) { return name + ' ' + line; }).join('\n'), '*');
});

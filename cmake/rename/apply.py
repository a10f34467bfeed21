#!/usr/bin/env python3
"""Renames the private vocabulary of a kvtwin checkout (the current directory) to the field's words.

    apply.py [--check] [--no-format]

Reads, beside itself: identifiers.tsv (old, new), scoped.tsv (path regex, old, new), phrases.tsv (where, path regex, regex, replacement),
files.tsv (rules of file names follow from the identifiers), rules.py (word rules for identifiers that the lists do not know yet).
Idempotent and deterministic; a second run changes nothing. --check only prints the counts.
"""
import collections
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import rules  # noqa: E402

CPP = re.compile(r'\.(cc|h|cu|cuh|proto|mjs|ts)$')
HASH = re.compile(r'(\.(py|sh|cmake|textproto|yaml)$)|(^|/)(CMakeLists\.txt|dev|\.ci/.*|\.clang-tidy)$')
PROSE = re.compile(r'\.(md|txt)$')
# Not touched: licences, binaries, data that others wrote or that a run printed, and the dated reports (records of what was said then).
SKIP = re.compile(r'(^LICENSE$|/LICENSE$|\.(binpb|safetensors|kvtrace|npz|gz)$|^tests/golden/.*\.(csv|jsonl?|yaml)$|^tests/golden/hf/data/'
                  r'|^reports/(validation|quality)/20.*|^models/[^/]+/.*\.csv$|^traces/data/|^tests/fuzz/seeds/(?!scenario_fuzz|sweep)'
                  r'|package-lock\.json$|\.(js|css|svg|html)$|^tests/tidy/retired_|^engine/base/retired_names\.h$|^tests/scenarios/retired_names_test|^CHANGELOG\.md$)')
TOKEN = re.compile(r'[A-Za-z_][A-Za-z0-9_]*')
WORD = re.compile(r'(?<![A-Za-z0-9_])[A-Za-z_][A-Za-z0-9_]*')


def read_tsv(name, columns):
    out = []
    path = os.path.join(HERE, name)
    if not os.path.exists(path):
        return out
    for line in open(path, encoding='utf-8'):
        line = line.rstrip('\n')
        if not line or line.startswith('#'):
            continue
        parts = line.split('\t')
        assert len(parts) == columns, (name, line)
        out.append(parts)
    return out


class Lists:
    def __init__(self):
        self.plain = dict(read_tsv('identifiers.tsv', 2))
        self.stays = {row[0] for row in read_tsv('stays.tsv', 1)}
        self.scoped = [(re.compile(p), o, n) for p, o, n in read_tsv('scoped.tsv', 3)]
        self.phrases = [(w, re.compile(p), re.compile(r), s.encode().decode('unicode_escape') if '\\n' in s else s)
                        for w, p, r, s in read_tsv('phrases.tsv', 4)]
        self.derived = collections.Counter()

    def of(self, path):
        """The mapping of one file. A file's own lines go before the general ones; the last line of scoped.tsv wins."""
        names = dict(self.plain)
        for rx, old, new in self.scoped:
            if rx.search(path):
                names[old] = new
        return names

    def derive(self, token, news):
        if token in self.stays or token in news:
            return token
        new = rules.rename(token)
        if new != token:
            self.derived[token] += 1
        return new


def segments(text, path):
    """(kind, text) of a source: code, comment, string."""
    out, at, code = [], 0, 0
    cpp = CPP.search(path) is not None
    rx = re.compile(r'//[^\n]*|/\*.*?\*/|R"([A-Za-z_]*)\(.*?\)\1"|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)\'|`[^`]*`', re.S) if cpp else \
        re.compile(r'"""(?:.*?)"""|(?:(?<=^)|(?<=[\s;]))#[^\n]*|"(?:[^"\\]|\\.)*"|\'[^\'\n]*\'', re.S | re.M)
    if path.endswith('.textproto'):
        rx = re.compile(r'#[^\n]*|"(?:[^"\\\n]|\\.)*"')
    if path.endswith('.sh') or path in ('dev',) or path.startswith('.ci/'):
        rx = re.compile(r'(?:(?<=^)|(?<=[\s;]))#[^\n]*', re.M)
    while True:
        m = rx.search(text, at)
        if m is None:
            break
        if not cpp or m.group(0)[0] != "'" or True:
            if m.start() > code:
                out.append(('code', text[code:m.start()]))
            piece = m.group(0)
            kind = 'comment' if piece.startswith(('//', '/*', '#', '"""')) else 'string'
            out.append((kind, piece))
            code = m.end()
        at = m.end()
    if code < len(text):
        out.append(('code', text[code:]))
    return out


def compound(token):
    """A name that prose does not use: with an underscore or a capital inside."""
    return '_' in token.strip('_') or token.endswith('_') or re.search(r'[a-z0-9][A-Z]', token) is not None


INCLUDE = re.compile(r'^\s*#\s*include\s+"|^import "')


class Renamer:
    def __init__(self, lists, path):
        self.lists, self.path = lists, path
        self.names = lists.of(path)
        self.news = lists.all_news
        self.changed = collections.Counter()
        self.phrases = {k: [(r, s) for w, p, r, s in lists.phrases if w in (k, 'all') and p.search(path)]
                        for k in ('none', 'post', 'shell', 'file', 'code', 'comment', 'string', 'prose', 'textproto')}
        self.fields = lists.fields

    def token(self, m, prose):
        t = m.group(0)
        new = self.names.get(t)
        if new is None:
            if prose and not compound(t):
                return t
            if t in self.lists.ordinary and t not in self.names:
                return t
            new = self.lists.derive(t, self.news)
        elif prose and not compound(t) and not t[0].isupper():
            return t
        elif prose and not compound(t) and t in self.lists.capital_ordinary:
            return t
        if new != t:
            self.changed[t] += 1
        return new

    def code(self, text):
        for rx, s in self.phrases['code']:
            text = rx.sub(s, text)
        return TOKEN.sub(lambda m: self.token(m, False), text)

    def quoted(self, m):
        """`name` in a comment or in Markdown is the name itself."""
        t = m.group(1)
        if self.path.endswith(('.md', '.txt')) and t in ('call', 'cells', 'calls', 'share', 'look', 'look', 'clean', 'quiet', 'wide', 'narrow') and t not in self.fields:
            return m.group(0)
        new = self.names.get(t, t)
        self.held.append(new)
        return f'`\x03{len(self.held) - 1}\x04`'

    def words(self, text, kind):
        self.held = []
        if kind in ('comment', 'prose'):
            text = re.sub(r'`([A-Za-z_][A-Za-z0-9_]*)`', self.quoted, text)
        text = self.words_unquoted(text, kind)
        if kind not in ('none', 'shell'):
            for rx, s in self.phrases['post']:
                text = rx.sub(s, text)
        return re.sub('\x03(\\d+)\x04', lambda m: self.held[int(m.group(1))], text)

    def words_unquoted(self, text, kind):
        for rx, s in self.phrases[kind]:
            text = rx.sub(s, text)
        return WORD.sub(lambda m: self.token(m, True), text)

    def string(self, text):
        inner = text[1:-1]
        if TOKEN.fullmatch(inner) and inner in self.fields:  # the name of a field, a column, a value
            new = self.names.get(inner, inner)
            return text[0] + new + text[-1]
        text = self.words(text, 'string')
        return self.field_names(text)

    def field_names(self, text):
        """Fields of textprotos inside strings and in shell words: `calls_max: 3`, `arena {`, `.cells=`, `"call":`."""
        def one(m):
            old = m.group('n')
            new = self.lists.plain.get(old) if old in self.fields else None
            if new:
                self.changed[old] += 1
                return m.group(0).replace(old, new)
            return m.group(0)

        def path(m):
            old = m.group('n')
            return m.group('p') + (self.lists.plain.get(old, old) if old in self.fields else old)
        text = re.sub(r'(?<![\w"])(?P<n>[a-z_]+)(?=\s*(:\s*(?:["\d\[{\-]|true\b|false\b)|\{\s*[a-z"}]))', one, text)
        text = re.sub(r'(?<![\w])(?P<p>(?:simulation|budget_options|scorer_options|retrieval_options|limits|replay|cpu|policies|precision_options)\.)(?P<n>[a-z_]+)(?![\w.(])', path, text)
        return re.sub(r'(?<=\.)(?P<n>[a-z_]+)(?==)', one, text)

    def file(self, text):
        path = self.path
        for rx, s in self.phrases['file']:
            text = rx.sub(s, text)
        if path.endswith('.textproto'):
            out = []
            for kind, part in segments(text, path):
                if kind == 'code':
                    part = TOKEN.sub(lambda m: self.names.get(m.group(0), m.group(0)) if m.group(0) in self.fields or compound(m.group(0))
                                     else m.group(0), part)
                    for rx, s in self.phrases['textproto']:
                        part = rx.sub(s, part)
                elif kind == 'string':
                    part = self.string(part)
                else:
                    part = self.words(part, 'comment')
                out.append(part)
            text = ''.join(out)
            for rx, s in self.phrases['textproto']:
                text = rx.sub(s, text)
            return text
        if CPP.search(path) or HASH.search(path):
            script = path.endswith('.sh') or path in ('dev',) or path.startswith('.ci/')
            cmake = path.endswith('CMakeLists.txt') or path.endswith('.cmake')
            out = []
            for kind, part in segments(text, path):
                if kind == 'code':
                    if script or cmake or path.endswith('.yaml'):
                        part = self.field_names(self.words(part, 'shell' if script else 'none'))
                    else:
                        part = self.code(part)
                elif kind == 'comment':
                    part = self.words(part, 'comment')
                else:
                    part = self.string(part)
                out.append(part)
            return ''.join(out)
        return self.field_names(self.words(text, 'prose'))


def git(*args):
    return subprocess.check_output(('git',) + args).decode()


def new_path(path, lists):
    folder, base = os.path.split(path)
    stem, dot, ext = base.partition('.')
    names = lists.of(path)
    new = names.get(stem)
    if new is None:
        new = lists.plain.get(stem)
    if new is None and '_' in stem:
        new = rules.rename(stem) if stem not in lists.stays else stem
    special = lists.files.get(path)
    if special:
        return special
    if new is None or new == stem:
        return path
    return os.path.join(folder, new + dot + ext)


def load():
    lists = Lists()
    lists.all_news = set(lists.plain.values()) | {n for _, _, n in lists.scoped}
    lists.fields = {r[0] for r in read_tsv('fields.tsv', 1)}
    lists.ordinary = {r[0] for r in read_tsv('ordinary.tsv', 1)}
    lists.capital_ordinary = {t for t in list(lists.plain) + [o for _, o, _ in lists.scoped] if t[:1].isupper() and not compound(t)} - {
        'Lease', 'Mistake', 'Mistakes', 'Adoption', 'CallId', 'Told'}
    lists.files = dict(read_tsv('files.tsv', 2))
    return lists


def count(paths, retired):
    n = 0
    for p in paths:
        for t in TOKEN.findall(open(p, encoding='utf-8').read()):
            n += t in retired
    return n


def text_files():
    out = []
    for p in git('ls-files').split('\n'):
        if not p or SKIP.search(p) or not os.path.isfile(p) or os.path.islink(p):
            continue
        try:
            open(p, encoding='utf-8').read()
        except UnicodeDecodeError:
            continue
        out.append(p)
    return out


def main():
    lists = load()
    paths = text_files()
    retired = {o for o, n in lists.plain.items() if o != n and compound(o)}
    print(f'retired identifiers: {len(retired)} names, {count(paths, retired)} uses before')
    if '--check' in sys.argv:
        return
    moves = {p: new_path(p, lists) for p in git('ls-files').split('\n') if p and (not SKIP.search(p) or p.endswith(('.txt',)))}
    moves = {a: b for a, b in moves.items() if a != b and not SKIP.search(a)}
    taken = set(git('ls-files').split('\n'))
    for a, b in sorted(moves.items()):
        assert b not in taken, f'{a} -> {b}: exists'
    # Paths inside files: whole paths first, then stems (CMake lists, docs).
    bases = {}
    for a, b in moves.items():
        bases.setdefault(os.path.basename(a), set()).add(os.path.basename(b))
    path_rx = re.compile('|'.join(sorted((re.escape(a) + r'(?![\w.])' for a in moves), key=len, reverse=True))) if moves else None
    base_map = {a: next(iter(b)) for a, b in bases.items() if len(b) == 1}
    base_rx = re.compile(r'(?<![\w/.-])(' + '|'.join(sorted((re.escape(a) for a in base_map), key=len, reverse=True)) + r')(?![\w.])') if base_map else None
    local_rx = re.compile(r'(?<![\w.-])((?:[\w]+/)+)(' + '|'.join(sorted((re.escape(a) for a in base_map), key=len, reverse=True)) + r')(?![\w.])') if base_map else None

    def mend_paths(text, path):
        if path_rx is None:
            return text, []
        held = []

        def hold(new):
            held.append(new)
            return f'\x01{len(held) - 1}\x02'
        text = path_rx.sub(lambda m: hold(moves[m.group(0)]), text)
        folder = os.path.dirname(path)

        def local(m):
            whole = os.path.normpath(os.path.join(folder, m.group(0)))
            return hold(os.path.join(m.group(1), base_map[m.group(2)])) if whole in moves else m.group(0)
        text = local_rx.sub(local, text)

        def base(m):
            whole = os.path.join(folder, m.group(1)) if folder else m.group(1)
            if whole in moves or path.endswith(('.md', '.txt', '.cmake')) or CPP.search(path) or HASH.search(path):
                # a base name that also exists elsewhere under its old name stays there
                if whole not in moves and whole in taken:
                    return m.group(0)
                return hold(base_map[m.group(1)])
            return m.group(0)
        return base_rx.sub(base, text), held

    total = collections.Counter()
    changed_files = []
    for path in paths:
        old = open(path, encoding='utf-8').read()
        text, held = mend_paths(old, path)
        renamer = Renamer(lists, path)
        text = renamer.file(text)
        text = re.sub('\x01(\\d+)\x02', lambda m: held[int(m.group(1))], text)
        total.update(renamer.changed)
        if text != old:
            open(path, 'w', encoding='utf-8', newline='').write(text)
            changed_files.append(path)
    for a, b in sorted(moves.items()):
        subprocess.check_call(['git', 'mv', a, b])
    changed_files = [moves.get(p, p) for p in changed_files]
    # Guards follow the file's name.
    for p in git('ls-files', '*.h', '*.cuh').split('\n'):
        if not p:
            continue
        text = open(p, encoding='utf-8').read()
        m = re.search(r'^#ifndef (KVTWIN_\w+_)\n#define \1\n', text, re.M)
        want = 'KVTWIN_' + re.sub(r'[/.]', '_', p).upper() + '_'
        if m and m.group(1) != want:
            open(p, 'w', encoding='utf-8').write(text.replace(m.group(1), want))
            changed_files.append(p)
    after = text_files()
    print(f'retired identifiers: {count(after, retired)} uses after; {sum(total.values())} tokens renamed in {len(changed_files)} files, {len(moves)} files moved')
    if lists.derived:
        print('by word rule (not in identifiers.tsv): ' + ' '.join(f'{o}->{rules.rename(o)}:{c}' for o, c in lists.derived.most_common()))
    if '--no-format' not in sys.argv:
        cpp = sorted(p for p in set(changed_files) if re.search(r'\.(cc|h|cu|cuh)$', p))
        for i in range(0, len(cpp), 50):
            subprocess.check_call(['clang-format', '-i'] + cpp[i:i + 50])
    for p in git('ls-files', 'reports/quality/*.csv', 'tests/golden/quality/*.csv').split():
        text = open(p, encoding='utf-8').read()
        head, _, rest = text.partition('\n')
        new = ','.join({'kv_share': 'kv_fraction', 'world': 'backend'}.get(c, c) for c in head.split(',')) + '\n' + re.sub(
            r'^(snapkv|h2o)_holes,', r'\1_in_place,', rest, flags=re.M)
        if new != text:
            open(p, 'w', encoding='utf-8', newline='').write(new)
    import edits
    done, missing = edits.apply_all()
    write_retired(lists)
    cpp = [p for p in done if re.search(r'\.(cc|h)$', p)]
    if cpp and '--no-format' not in sys.argv:
        subprocess.check_call(['clang-format', '-i'] + cpp)
    print('added or edited: ' + ' '.join(done))
    if missing:
        print('NOT EDITED (mend edits.py): ' + ', '.join(missing))


def write_retired(lists):
    """tests/tidy/retired_identifiers.tsv: what is gone for good. Ordinary words, and names that a scoped rule leaves somewhere, are free."""
    used = set()
    for p in text_files():
        used.update(TOKEN.findall(open(p, encoding='utf-8').read()))
    rows = sorted((o, n) for o, n in lists.plain.items() if o != n and o not in used and (compound(o) or o[:1].isupper()) and not o.startswith('KVTWIN_'))
    news = {n for _, n in rows}
    with open('tests/tidy/retired_identifiers.tsv', 'w', encoding='utf-8') as f:
        f.writelines(f'{o}\t{n}\n' for o, n in rows if o not in news)


if __name__ == '__main__':
    main()

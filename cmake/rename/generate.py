#!/usr/bin/env python3
"""Makes identifiers.tsv, scoped.tsv, stays.tsv and ordinary.tsv from decisions.txt, rules.py and the identifiers of the checkout here; prints collisions."""
import collections, os, re, subprocess, sys
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import rules
import apply
plain, scoped, stays = {}, [], []
for line in open(f'{HERE}/decisions.txt'):
    line = line.split(' #')[0].rstrip('\n')
    if not line.strip() or line.startswith('#'):
        continue
    if line.startswith('@'):
        rx, old, new = line[1:].rsplit(' ', 2)
        scoped.append((rx, old, old if new == '=' else new))
    else:
        old, new = line.split()
        if new == '=':
            stays.append(old)
        else:
            assert plain.get(old, new) == new, old
            plain[old] = new
per_file = {}
for p in apply.text_files():
    if not (apply.CPP.search(p) or re.search(r'\.py$', p)):
        continue
    t = open(p, encoding='utf-8').read()
    ids = collections.Counter()
    for kind, part in apply.segments(t, p):
        if kind == 'code':
            ids.update(apply.TOKEN.findall(part))
        else:
            ids.update(x for x in apply.WORD.findall(part) if apply.compound(x))
    per_file[p] = ids
allids = collections.Counter()
for c in per_file.values():
    allids.update(c)
scoped_old = {o for _, o, _ in scoped}
for w in list(allids):
    if w in plain or w in stays:
        continue
    new = rules.rename(w)
    if new != w:
        plain[w] = new
# A scoped-only name (no general line): stays elsewhere.
ordinary = sorted(o for o in scoped_old if o not in plain)
with open(f'{HERE}/identifiers.tsv', 'w') as f:
    for o in sorted(plain):
        f.write(f'{o}\t{plain[o]}\n')
with open(f'{HERE}/scoped.tsv', 'w') as f:
    for r in scoped:
        f.write('\t'.join(r) + '\n')
with open(f'{HERE}/stays.tsv', 'w') as f:
    f.write('\n'.join(sorted(set(stays))) + '\n')
with open(f'{HERE}/ordinary.tsv', 'w') as f:
    f.write('\n'.join(ordinary) + '\n')
# fields: names of proto fields and enum values, which textprotos and strings use alone
fields = set()
for p in subprocess.check_output(['git', 'ls-files', '*.proto']).decode().split():
    for m in re.finditer(r'(\w+) = \d+[;\s\[]', open(p).read()):
        fields.add(m.group(1))
if len(sys.argv) > 1 and sys.argv[1] == 'fields':
    extra = set(open(f'{HERE}/fields_extra.txt').read().split()) if os.path.exists(f'{HERE}/fields_extra.txt') else set()
    with open(f'{HERE}/fields.tsv', 'w') as f:
        f.write('\n'.join(sorted(x for x in fields | extra if x in plain or x in scoped_old)) + '\n')
lists = apply.load()
# collisions
bad = collections.defaultdict(list)
for p, ids in per_file.items():
    names = lists.of(p)
    target = collections.defaultdict(set)
    for w in ids:
        target[names.get(w, w)].add(w)
    for n, olds in target.items():
        if len(olds) > 1 and not (len(olds) == 2 and all(apply.compound(o) and o[0].isupper() for o in olds) and False):
            bad[(n, tuple(sorted(olds)))].append(p)
for (n, olds), ps in sorted(bad.items(), key=lambda kv: -len(kv[1])):
    print(len(ps), n, '<-', ' '.join(olds), '|', ' '.join(ps[:4]))
# global: new names that exist already
exist = [(n, o) for o, n in plain.items() if n in allids and n not in plain and o != n]
print('GLOBAL new names in use already:', ' '.join(f'{o}->{n}({allids[n]})' for n, o in sorted(exist)))
dup = collections.defaultdict(list)
for o, n in plain.items():
    dup[n].append(o)
print('GLOBAL merged:', ' | '.join(f'{n}<-{",".join(o)}' for n, o in sorted(dup.items()) if len(o) > 1))

"""Members whose new name differs by file: a scoped rule may rename a use and not the declaration, or the other way round."""
import collections,re,sys,os
sys.path.insert(0, __import__('os').path.dirname(__import__('os').path.abspath(__file__))); import apply
lists=apply.load()
scoped_old={o for _,o,_ in lists.scoped}
use=collections.defaultdict(lambda: collections.defaultdict(list)); decl=collections.defaultdict(lambda: collections.defaultdict(list))
for p in apply.text_files():
    if not apply.CPP.search(p): continue
    names=lists.of(p)
    t=open(p).read()
    for rx,s in [(r,s) for w,pp,r,s in lists.phrases if w=='file' and pp.search(p)]: t=rx.sub(s,t)
    code=''.join(x for k,x in apply.segments(t,p) if k=='code')
    for o in scoped_old:
        if o not in code: continue
        n=names.get(o,o)
        if re.search(r'(\.|->|::)\s*'+o+r'\b',code): use[o][n].append(p)
        elif re.search(r'\b'+o+r'\b',code) and p.endswith(('.h','.cuh','.proto')): decl[o][n].append(p)
        if p.endswith(('.h','.cuh','.proto')) and re.search(r'(?<![.>:])\b'+o+r'\b\s*(;|=|\{|\(|,)',code): decl[o][n].append(p)
for o in sorted(scoped_old):
    if len(set(use[o])|set(decl[o]))>1 and use[o]:
        print('##',o)
        for n in sorted(set(use[o])|set(decl[o])):
            print('   ',n,'USE',' '.join(use[o][n][:9]),'| DECL',' '.join(sorted(set(decl[o][n]))[:12]))

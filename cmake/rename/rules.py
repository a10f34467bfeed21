"""Word rules: what an identifier that contains a retired word becomes, where identifiers.tsv has no line of its own."""
import re

# retired word -> the field's word. Words whose meaning depends on the place are not here; identifiers.tsv lists those names.
WORDS = {
    'call': 'request', 'calls': 'requests',
    'cell': 'kv entry', 'cells': 'kv entries',
    'mistake': 'error', 'mistakes': 'errors',
    'lease': 'pin', 'leases': 'pins', 'leased': 'pinned',
    'loose': 'evictable',
    'hole': 'dropped', 'holes': 'dropped', 'dead': 'dropped', 'gone': 'dropped',
    'fold': 'coalesce', 'folded': 'coalesced', 'folding': 'coalescing', 'unfolded': 'uncoalesced',
    'demote': 'swap out', 'demotes': 'swaps', 'demoted': 'swapped out', 'demotion': 'swap out',
    'adopt': 'reuse', 'adopted': 'reused', 'adopting': 'reusing', 'adoption': 'prefix hit', 'adoptions': 'prefix hits',
    'grant': 'allocation', 'grants': 'allocations', 'granted': 'allocated',
    'arena': 'resident', 'arenas': 'residents',
    'snapshot': 'prefix checkpoint', 'snapshots': 'prefix checkpoints',
    'dual': 'mixed precision',
    'world': 'backend', 'worlds': 'backends',
    'frame': 'logical page', 'frames': 'logical pages',
    'imposed': 'forced', 'impose': 'force', 'imposable': 'forcible',
    'moment': 'trigger', 'look': 'attention score', 'looks': 'attention scores',
    'share': 'fraction', 'shares': 'fractions',
    'kept': 'retained',
    'told': 'reported', 'says': 'reports',
}
DROP_DUP = [('kv kv entry', 'kv entry'), ('kv kv entries', 'kv entries'),
            ('prefix prefix', 'prefix'), ('entry entry', 'entry')]


def split(name):
    """Leading/trailing underscores, words, style."""
    lead = re.match(r'_*', name).group(0)
    trail = re.search(r'_*$', name[len(lead):]).group(0)
    core = name[len(lead):len(name) - len(trail)]
    if '_' in core or core.islower() or core.isupper():
        words = core.split('_')
        style = 'upper' if core.isupper() and len(core) > 1 else 'snake'
        if style == 'snake' and not core.islower():
            style = 'mixed'
    else:
        s = re.sub(r'([a-z0-9])([A-Z])', r'\1 \2', core)
        s = re.sub(r'([A-Z]+)([A-Z][a-z])', r'\1 \2', s)
        words = s.split(' ')
        style = 'camel'
    return lead, words, trail, style


def join(lead, words, trail, style, first_lower):
    if style == 'upper':
        return lead + '_'.join(w.upper() for w in words) + trail
    if style == 'camel':
        out = ''.join(w[:1].upper() + w[1:] for w in words)
        if first_lower:
            out = out[:1].lower() + out[1:]
        return lead + out + trail
    return lead + '_'.join(words) + trail


def rename(name, words=WORDS):
    """The new name by words; the name itself where no word is retired."""
    lead, parts, trail, style = split(name)
    if not any(p.lower() in words for p in parts):
        return name
    out = []
    for p in parts:
        new = words.get(p.lower())
        out += new.split(' ') if new else [p]
    text = ' '.join(w.lower() if w.lower() in ('kv',) else w for w in out)
    for a, b in DROP_DUP:
        text = text.replace(a, b)
    return join(lead, text.split(' '), trail, style, parts[0][:1].islower())

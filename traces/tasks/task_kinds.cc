// The tasks. Each writes one session; sizes follow from the plan's tokens and questions, content from draws.

#include <algorithm>
#include <map>
#include <utility>

#include "engine/base/check.h"
#include "traces/tasks/task_session.h"

namespace kvtwin::task {
namespace {

struct Fact {
  uint32_t key = 0;
  Ids value;
  Ids item() const { return {key, value[0], value[1]}; }
};

constexpr uint32_t kQuestionTokens = 3;  // user ask K
constexpr uint32_t kAnswerTokens = 4;    // assistant V V end
constexpr uint32_t kTurnTokens = kQuestionTokens + kAnswerTokens;

std::vector<Fact> facts(TaskSession* s, uint32_t count) {
  std::vector<Fact> out;
  for (const uint32_t key : s->some(kKeyFirst, kKeys, count)) out.push_back({key, s->value()});
  return out;
}

std::vector<Ids> items(const std::vector<Fact>& facts) {
  std::vector<Ids> out;
  for (const Fact& fact : facts) out.push_back(fact.item());
  return out;
}

void ask(TaskSession* s, uint32_t verb, uint32_t what, Ids right, uint32_t source_end, bool scored = true) {
  s->next_turn();
  s->say(v1::USER, {kUser, verb, what}, true);
  right.insert(right.begin(), kAssistant);
  right.push_back(kEnd);
  s->answer(v1::ASSISTANT, right, scored, source_end);
}

// How many questions fit next to `fixed` tokens, with a quarter of the session reserved for the document.
uint32_t questions_of(const TaskSession& s, uint32_t fixed, uint32_t turn_tokens) {
  const uint32_t room = s.plan().tokens - s.plan().tokens / 4;
  const uint32_t fit = room > fixed ? (room - fixed) / turn_tokens : 0;
  return std::clamp(s.plan().questions, 1u, std::max(1u, fit));
}

void open(TaskSession* s) { s->say(v1::INST, {kBegin, kSystem}); }

// The user passes a document; returns where it ends.
uint32_t hand_over(TaskSession* s, const std::vector<Ids>& items, uint32_t tokens) {
  Ids ids = {kResult};
  const Ids body = s->document(items, tokens - 2);
  ids.insert(ids.end(), body.begin(), body.end());
  ids.push_back(kEnd);
  s->observe(ids, 0, false);
  return s->used();
}

// user (talk) fetch T / request T end / result T ... end: a document is a tool's result.
uint32_t fetch(TaskSession* s, uint32_t tool, const std::vector<Ids>& items, uint32_t tokens,
               uint32_t talk = 0) {
  s->next_turn();
  Ids request = s->document({}, talk);
  request.insert(request.begin(), kUser);
  request.insert(request.end(), {kFetch, tool});
  s->say(v1::USER, request);
  s->answer(v1::TOOL_CALL, {kRequest, tool, kEnd}, false, s->used(), 1 + tool - kToolFirst);
  Ids ids = {kResult, tool};
  const Ids body = s->document(items, tokens - 3);
  ids.insert(ids.end(), body.begin(), body.end());
  ids.push_back(kEnd);
  s->observe(ids, 1 + tool - kToolFirst, true);
  return s->used();
}
constexpr uint32_t kFetchTokens = 6;  // without the result

void lookups(TaskSession* s, uint32_t facts_max) {
  open(s);
  const uint32_t questions = questions_of(*s, s->used(), kTurnTokens);
  const uint32_t document = s->left() - questions * kTurnTokens;
  const std::vector<Fact> known = facts(s, std::min(facts_max, (document - 2) / 4));
  const uint32_t end = hand_over(s, items(known), document);
  for (uint32_t i = 0; i < questions; ++i) {
    const Fact& fact = known[s->below(static_cast<uint32_t>(known.size()))];
    ask(s, kAsk, fact.key, fact.value, end);
  }
}

void needle(TaskSession* s) { lookups(s, 1 + s->below(4)); }
void multi_key(TaskSession* s) { lookups(s, kKeys); }

// Keys with several one-symbol values; all values of one key are the answer.
void multi_value(TaskSession* s) {
  constexpr uint32_t kPerKey = 3, kTurn = 3 + kPerKey + 2;
  open(s);
  const uint32_t questions = questions_of(*s, s->used(), kTurn);
  const uint32_t document = s->left() - questions * kTurn;
  const uint32_t count = std::clamp((document - 2) / (4 * kPerKey), 1u, 12u);
  const Ids keys = s->some(kKeyFirst, kKeys, count);
  Ids order;
  for (uint32_t i = 0; i < kPerKey; ++i) order.insert(order.end(), keys.begin(), keys.end());
  for (uint32_t i = 0; i + 1 < order.size(); ++i)
    std::swap(order[i], order[i + s->below(static_cast<uint32_t>(order.size()) - i)]);
  std::map<uint32_t, Ids> values;
  std::vector<Ids> items;
  for (const uint32_t key : order) {
    // All values of a key are different, or "the next one" would have no meaning.
    Ids& own = values[key];
    uint32_t value = kValueFirst + s->below(kValues);
    while (std::find(own.begin(), own.end(), value) != own.end()) value = kValueFirst + s->below(kValues);
    own.push_back(value);
    items.push_back({key, value});
  }
  const uint32_t end = hand_over(s, items, document);
  for (uint32_t i = 0; i < questions; ++i) {
    const uint32_t key = keys[s->below(count)];
    ask(s, kAll, key, values[key], end);
  }
}

// Facts, and keys that are the same as another key, over `hops` links.
struct Linked {
  std::vector<Ids> items;
  std::vector<Fact> asked;
};
Linked linked(TaskSession* s, uint32_t chains, uint32_t hops) {
  Linked out;
  const Ids keys = s->some(kKeyFirst, kKeys, chains * (hops + 1));
  for (uint32_t hop = 0; hop <= hops; ++hop) {
    for (uint32_t c = 0; c < chains; ++c) {
      const uint32_t key = keys[c * (hops + 1) + hop];
      if (hop == 0) {
        out.asked.push_back({key, s->value()});
        out.items.push_back(out.asked.back().item());
      } else {
        out.items.push_back({key, kSame, out.asked[c].key});
        out.asked[c].key = key;
      }
    }
  }
  return out;
}

void variable_tracking(TaskSession* s) {
  open(s);
  const uint32_t hops = 1 + s->below(2);
  const uint32_t questions = questions_of(*s, s->used(), kTurnTokens);
  const uint32_t document = s->left() - questions * kTurnTokens;
  const uint32_t chains = std::clamp((document - 2) / (5 * (hops + 1)), 1u, 12u);
  const Linked all = linked(s, chains, hops);
  const uint32_t end = hand_over(s, all.items, document);
  for (uint32_t i = 0; i < questions; ++i) {
    const Fact& fact = all.asked[s->below(chains)];
    ask(s, kAsk, fact.key, fact.value, end);
  }
}

// One tool's result has the values, the next one's the links to them.
void multi_hop(TaskSession* s) {
  open(s);
  const uint32_t fixed = s->used() + 2 * kFetchTokens;
  const uint32_t questions = questions_of(*s, fixed, kTurnTokens);
  const uint32_t document = (s->plan().tokens - fixed - questions * kTurnTokens) / 2;
  const uint32_t chains = std::clamp((document - 3) / 5, 1u, 16u);
  Linked all = linked(s, chains, 1);
  const std::vector<Ids> values(all.items.begin(), all.items.begin() + chains);
  std::vector<Ids> links(all.items.begin() + chains, all.items.end());
  for (uint32_t i = 0; i + 1 < chains; ++i) std::swap(links[i], links[i + s->below(chains - i)]);
  const Ids tools = s->some(kToolFirst, kTools, 2);
  const uint32_t end = fetch(s, tools[0], values, document);
  fetch(s, tools[1], links, document);
  for (uint32_t i = 0; i < questions; ++i) {
    const Fact& fact = all.asked[s->below(chains)];
    ask(s, kAsk, fact.key, fact.value, end);
  }
}

// Three tools are called. Each result is asked about at once, and the oldest ones again later: those count.
// `same`: about the same facts again.
void results(TaskSession* s, bool same) {
  constexpr uint32_t kResults = 3;
  open(s);
  const uint32_t fixed = s->used() + kResults * kFetchTokens;
  const uint32_t questions = std::max(kResults + 1, questions_of(*s, fixed, kTurnTokens));
  const uint32_t document = (s->plan().tokens - fixed - questions * kTurnTokens) / kResults;
  const uint32_t each = std::clamp((document - 3) / 5, 1u, kKeys / kResults);
  const std::vector<Fact> known = facts(s, each * kResults);
  const Ids tools = s->some(kToolFirst, kTools, kResults);
  std::vector<uint32_t> ends;
  std::vector<Fact> asked;
  for (uint32_t r = 0; r < kResults; ++r) {
    const std::vector<Fact> own(known.begin() + r * each, known.begin() + (r + 1) * each);
    ends.push_back(fetch(s, tools[r], items(own), document));
    asked.push_back(own[s->below(each)]);
    ask(s, kAsk, asked.back().key, asked.back().value, ends.back(), false);
  }
  for (uint32_t i = kResults; i < questions; ++i) {
    const uint32_t r = s->below(kResults - 1);
    const Fact& fact = same ? asked[r] : known[r * each + s->below(each)];
    ask(s, kAsk, fact.key, fact.value, ends[r]);
  }
}

void old_result(TaskSession* s) { results(s, false); }
void asked_again(TaskSession* s) { results(s, true); }

// Users talk, tools answer, and the questions are about the newest result: talk and older results in the
// prompt are of no more use. The tag of a token predicts its use.
void newest_result(TaskSession* s) {
  open(s);
  const uint32_t rounds = std::clamp(s->plan().questions, 1u, std::max(1u, s->left() / 96));
  const uint32_t room = s->left() / rounds - kFetchTokens - kTurnTokens, talk = room / 3,
                 document = room - talk;
  const uint32_t each = std::clamp((document - 3) / 5, 1u, kKeys / rounds);
  const std::vector<Fact> known = facts(s, rounds * each);
  const Ids tools = s->some(kToolFirst, kTools, rounds);
  for (uint32_t r = 0; r < rounds; ++r) {
    const std::vector<Fact> own(known.begin() + r * each, known.begin() + (r + 1) * each);
    const uint32_t end = fetch(s, tools[r % tools.size()], items(own), document, talk);
    const Fact& fact = own[s->below(each)];
    ask(s, kAsk, fact.key, fact.value, end);
  }
}

// One document of two halves. All questions but the last are about one half, the last about the other: it
// fails if the policy dropped what no question had been about. The last one counts.
void changing_intent(TaskSession* s) {
  open(s);
  const uint32_t questions = std::max(2u, questions_of(*s, s->used(), kTurnTokens));
  const uint32_t document = s->left() - questions * kTurnTokens;
  const uint32_t each = std::clamp((document - 2) / 8, 1u, 24u);
  const std::vector<Fact> known = facts(s, 2 * each);
  const uint32_t end = hand_over(s, items(known), document);
  const uint32_t first = s->below(2);
  for (uint32_t i = 0; i < questions; ++i) {
    const bool last = i + 1 == questions;
    const uint32_t half = last ? 1 - first : first;
    const Fact& fact = known[half * each + s->below(each)];
    ask(s, kAsk, fact.key, fact.value, end, last);
  }
}

// The system prompt contains the parameters of tools; a request must repeat them literally.
void tool_schema(TaskSession* s) {
  constexpr uint32_t kParameters = 3, kTurn = 3 + kParameters + 3;
  s->say(v1::INST, {kBegin, kSystem});
  const uint32_t questions = questions_of(*s, s->used(), kTurn);
  const uint32_t document = s->left() - questions * kTurn;
  const uint32_t count = std::clamp(document / 8, 1u, kTools);
  const Ids tools = s->some(kToolFirst, kTools, count);
  // No two tools have a parameter in common, so that a name is always followed by the same.
  static_assert(kTools * kParameters <= kKeys);
  const Ids names = s->some(kKeyFirst, kKeys, count * kParameters);
  std::vector<Ids> items, parameters;
  for (const uint32_t tool : tools) {
    const auto own = names.begin() + static_cast<ptrdiff_t>(parameters.size() * kParameters);
    parameters.emplace_back(own, own + kParameters);
    items.push_back({kSchema, tool});
    items.back().insert(items.back().end(), parameters.back().begin(), parameters.back().end());
  }
  s->say(v1::INST, s->document(items, document));
  const uint32_t end = s->used();
  for (uint32_t i = 0; i < questions; ++i) {
    const uint32_t t = s->below(count);
    s->next_turn();
    s->say(v1::USER, {kUser, kUse, tools[t]}, true);
    Ids right = {kRequest, tools[t]};
    right.insert(right.end(), parameters[t].begin(), parameters[t].end());
    right.push_back(kEnd);
    s->answer(v1::TOOL_CALL, right, true, end, 1 + tools[t] - kToolFirst);
  }
}

// Question, document, answer: the question is known while the document is read, but not repeated at its end.
void question_first(TaskSession* s) {
  constexpr uint32_t kRound = 3 + 2 + kAnswerTokens;
  open(s);
  const uint32_t questions = std::clamp(s->left() / 64, 1u, std::max(1u, s->plan().questions));
  const uint32_t document = s->left() / questions - kRound;
  const uint32_t each = std::clamp((document - 2) / 5, 1u, kKeys / questions);
  const std::vector<Fact> all = facts(s, questions * each);  // a key means one thing in all documents
  for (uint32_t i = 0; i < questions; ++i) {
    const std::vector<Fact> known(all.begin() + i * each, all.begin() + (i + 1) * each);
    const Fact& fact = known[s->below(static_cast<uint32_t>(known.size()))];
    s->next_turn();
    s->say(v1::USER, {kUser, kAsk, fact.key}, true);
    const uint32_t end = hand_over(s, items(known), document);
    s->say(v1::USER, {kUser, kEarlier});
    s->answer(v1::ASSISTANT, {kAssistant, fact.value[0], fact.value[1], kEnd}, true, end);
  }
}

// Many values in one answer: an entry that is dropped while it is generated is missing at its end.
void long_list(TaskSession* s) {
  open(s);
  const uint32_t listed = std::clamp(s->plan().tokens / 24, 4u, 16u);
  const uint32_t turn = 2 + listed + 2 + 3 * listed;
  const uint32_t questions = std::clamp(s->plan().questions, 1u, std::max(1u, s->left() / 2 / turn));
  const uint32_t document = s->left() - questions * turn;
  const std::vector<Fact> known = facts(s, std::max(listed, std::min(kKeys / 2, (document - 2) / 5)));
  const uint32_t end = hand_over(s, items(known), document);
  for (uint32_t i = 0; i < questions; ++i) {
    Ids question = {kUser, kList}, right = {kAssistant};
    for (const uint32_t k : s->some(0, static_cast<uint32_t>(known.size()), listed)) {
      question.push_back(known[k].key);
      const Ids item = known[k].item();
      right.insert(right.end(), item.begin(), item.end());
    }
    right.push_back(kEnd);
    s->next_turn();
    s->say(v1::USER, question, true);
    s->answer(v1::ASSISTANT, right, true, end);
  }
}

// One goal refined over turns: three results, of which the goal needs four facts. A first round asks for each
// of them and does not count; later rounds come back to them in drawn orders. What earlier turns asked tells
// what later ones need, and the newest question alone does not.
void refined_goal(TaskSession* s) {
  constexpr uint32_t kResults = 3, kGoal = 4;
  open(s);
  const uint32_t fixed = s->used() + kResults * kFetchTokens;
  const uint32_t questions = std::max(kGoal + 1, questions_of(*s, fixed, kTurnTokens));
  const uint32_t document = (s->plan().tokens - fixed - questions * kTurnTokens) / kResults;
  const uint32_t each = std::clamp((document - 3) / 5, 2u, kKeys / kResults);
  const std::vector<Fact> known = facts(s, each * kResults);
  const Ids tools = s->some(kToolFirst, kTools, kResults);
  std::vector<uint32_t> ends;
  for (uint32_t r = 0; r < kResults; ++r) {
    const std::vector<Fact> own(known.begin() + r * each, known.begin() + (r + 1) * each);
    ends.push_back(fetch(s, tools[r], items(own), document));
  }
  const Ids goal = s->some(0, each * kResults, kGoal);
  Ids order = goal;
  for (uint32_t i = 0; i < questions; ++i) {
    if (i % kGoal == 0 && i > 0) {
      for (uint32_t j = 0; j + 1 < kGoal; ++j) std::swap(order[j], order[j + s->below(kGoal - j)]);
    }
    const uint32_t at = order[i % kGoal];
    ask(s, kAsk, known[at].key, known[at].value, ends[at / each], i >= kGoal);
  }
}

constexpr uint32_t kAroundRepeat = 2 + 2 + 2;  // result end, user all, assistant end

// The model repeats a document of half the session, word for word: one long answer, whose neighbouring steps
// need neighbouring tokens.
void repeat_document(TaskSession* s, const std::vector<Ids>& items, uint32_t body) {
  const Ids text = s->document(items, body);
  Ids framed = {kResult};
  framed.insert(framed.end(), text.begin(), text.end());
  framed.push_back(kEnd);
  s->observe(framed, 0, false);
  const uint32_t end = s->used();
  s->next_turn();
  s->say(v1::USER, {kUser, kAll}, true);
  Ids right = {kAssistant};
  right.insert(right.end(), text.begin(), text.end());
  right.push_back(kEnd);
  s->answer(v1::ASSISTANT, right, true, end);
}

void repeat(TaskSession* s) {
  open(s);
  const uint32_t body = (s->left() - kAroundRepeat) / 2;
  repeat_document(s, items(facts(s, std::min(kKeys, body / 6))), body);
}

// Documents of drawn sizes, of facts, links or filler alone: a model that learns from them repeats any. With
// one size of documents it would learn the distance between a token and its copy instead.
void repeat_any(TaskSession* s) {
  constexpr uint32_t kLeast = 16;
  open(s);
  while (s->left() >= kAroundRepeat + 2 * kLeast) {
    const uint32_t body = kLeast + s->below((s->left() - kAroundRepeat) / 2 - kLeast + 1);
    const bool links = s->below(2) == 1;
    const uint32_t count = s->below(1 + std::min(links ? kKeys / 3 : kKeys, body / (links ? 9 : 4)));
    repeat_document(s, links ? linked(s, count, 2).items : items(facts(s, count)), body);
  }
}

}  // namespace

const std::vector<NamedTask>& named_tasks() {
  static const std::vector<NamedTask> kAllTasks = {
      {"needle", "a few facts in much filler; one is asked for", needle},
      {"multi_key", "as many facts as fit half of the document; one is asked for", multi_key},
      {"multi_value", "keys are given three values at different places; all of one are asked for",
       multi_value},
      {"variable_tracking", "keys that are the same as others, over one or two links", variable_tracking},
      {"multi_hop", "one tool's result links to facts of another's", multi_hop},
      {"old_result", "facts in tool results, asked for again turns later", old_result},
      {"changing_intent", "the last question is about what no question was about before", changing_intent},
      {"tool_schema", "a tool is called with the parameters of its schema, word for word", tool_schema},
      {"question_first", "the question stands before the document, the answer behind it", question_first},
      {"long_list", "an answer that needs many facts", long_list},
      {"asked_again", "facts in tool results that were asked for once, asked for again turns later",
       asked_again, false},
      {"newest_result", "between talk and older results: what the newest result says", newest_result, false},
      {"refined_goal", "four facts of a goal, asked for in turn and then again and again", refined_goal,
       false},
      {"repeat", "a document is repeated word for word", repeat, false},
      {"repeat_any", "documents of any size and content, each repeated before the next", repeat_any, false},
  };
  return kAllTasks;
}

v1::Session make_session(const TaskPlan& plan, uint64_t index) {
  for (const NamedTask& task : named_tasks()) {
    if (plan.task != task.name) continue;
    TaskSession session(plan, index);
    task.write(&session);
    KVT_CHECK(session.used() <= plan.tokens);
    return session.take();
  }
  KVT_CHECK(false);
  return {};
}

}  // namespace kvtwin::task

// The data of a report: requests read back, thinned and escaped.

#include "reports/page/report.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

using namespace kvtwin;

namespace {

const std::string kHead =
    "request,session,replica,node,engine,end,prompt_tokens,output_tokens,reused_tokens,ready_ns,admitted_ns,"
    "first_token_ns,finished_ns\n";

Report report_of(const std::string& session) {
  Report report;
  report.command = "kvtwin report a";
  ReportRun run;
  run.dir = "a";
  run.result.set_scenario("one");
  run.summary = R"({"ttft_p99_ms":12.5,"requests_finished":1})";
  run.requests = *read_requests(
      kHead + "0,\"" + session + "\",0,0,0,finished,10,3,0,1000000000,1500000000,2000000000,4000000000\n",
      "requests.csv");
  report.runs.push_back(run);
  return report;
}

}  // namespace

TEST_CASE("report: requests.csv read back: finished requests, in seconds from ready") {
  const auto requests =
      read_requests(kHead +
                        "0,\"a,\"\"b\",0,0,0,finished,10,3,4,1000000000,1500000000,2000000000,4000000000\n"
                        "1,c,0,0,0,cancelled,10,3,4,1000000000,,,\n"
                        "2,\"a,\"\"b\",0,1,0,finished,20,1,8,5000000000,5000000000,5250000000,5250000000\n",
                    "requests.csv");
  REQUIRE_MESSAGE(requests, requests.error().text());
  REQUIRE(requests->count() == 2);
  CHECK(requests->sessions == std::vector<std::string>{"a,\"b"});
  CHECK(requests->ready_s == std::vector<double>{1, 5});
  CHECK(requests->queue_s == std::vector<float>{0.5f, 0});
  CHECK(requests->ttft_s == std::vector<float>{1, 0.25f});
  CHECK(requests->e2e_s == std::vector<float>{3, 0.25f});
  CHECK(requests->reused == std::vector<uint32_t>{4, 8});
  CHECK(requests->agent.empty());  // absent from the file
}

TEST_CASE("report: a malformed requests.csv is reported with the line") {
  const auto said = [](const std::string& text) { return read_requests(text, "x.csv").error().text(); };
  CHECK(said("") == "x.csv:1: has no column \"session\"; run the scenario again");
  CHECK(said("garbage\n").find("has no column") != std::string::npos);
  CHECK(said(kHead + "1,2\n") == "x.csv:2: has 2 columns, the first line 13; run the scenario again");
  CHECK(said(kHead + "0,a,0,0,0,finished,x,3,4,1,1,1,1\n") ==
        "x.csv:2: prompt_tokens is \"x\", not a whole number; run the scenario again");
}

TEST_CASE("report: tools.csv read back: tools of sessions that have requests, in seconds") {
  const auto requests =
      read_requests(kHead +
                        "0,a,0,0,0,finished,10,3,4,1000000000,1500000000,2000000000,4000000000\n"
                        "1,a,1,0,0,finished,10,3,4,1000000000,1500000000,2000000000,4000000000\n",
                    "requests.csv");
  REQUIRE(requests);
  const std::string head = "session,replica,node,agent,kind,released_ns,finished_ns\n";
  const std::string rows =
      "a,1,3,2,tool,4000000000,4500000000\nb,0,1,0,tool,1,2\na,0,5,0,agent,6000000000,9000000000\n";
  const auto tools = read_tools(head + rows, "tools.csv", *requests, 10);
  REQUIRE_MESSAGE(tools, tools.error().text());
  CHECK(tools->released_s == std::vector<double>{4, 6});
  CHECK(tools->taken_s == std::vector<float>{0.5f, 3});
  CHECK(tools->agent == std::vector<uint16_t>{2, 0});
  CHECK(tools->inner == std::vector<uint8_t>{0, 1});
  CHECK(tools->session == std::vector<uint32_t>{1, 0});
  CHECK(read_tools(head + rows, "tools.csv", *requests, 1)->count() == 1);
  const auto said = [&](const std::string& text) {
    return read_tools(text, "x.csv", *requests, 9).error().text();
  };
  CHECK(said("").find("x.csv:1: was not written") == 0);
  CHECK(said(head + "a,0,1,0,tool,5,4\n").find("x.csv:2: is not a tool") == 0);
  CHECK(said(head + "a,0,1,0,nap,4,5\n").find("x.csv:2: is not a tool") == 0);
}

TEST_CASE("report: heads and evidence are in the page as written") {
  Report report = report_of("a");
  report.runs[0].heads = R"({"layers":1,"kv_heads":2,"held":[0.5,0.5],"needed":[0.5,0.25]})";
  report.validations.push_back({"v", R"({"scenarios":[{"scenario":"</script>"}]})"});
  report.qualities.push_back({"q", R"([{"policy":"full","accuracy":0.5}])"});
  const std::string html = report_html(report);
  CHECK(html.find(R"("heads":{"layers":1,"kv_heads":2,"held":[0.5,0.5],"needed":[0.5,0.25]})") !=
        std::string::npos);
  CHECK(html.find(R"("validations":[{"dir":"v","data":{"scenarios":[{"scenario":"\u003c/script>"}]}}])") !=
        std::string::npos);
  CHECK(html.find(R"("qualities":[{"dir":"q","data":[{"policy":"full","accuracy":0.5}]}])") !=
        std::string::npos);
}

TEST_CASE("report: what a run is, what limits it, SLOs and definitions are in the page as given") {
  Report report = report_of("a");
  report.slos = {{"ttft_p99<2s", "ttft_p99_ms", 2000}, {"goodput>=95%", "", 0.95}};
  report.metrics = {{"busy", "fraction", "of engine time, in which a step runs"}};
  report.runs[0].setting = {{"model", "m"}, {"GPU", "h200 × TP 1 × 1 engine"}};
  report.runs[0].limited_by = "nothing";
  report.runs[0].slos = {{12.5, 0.00625, true, true}, {}};
  report.sweeps.push_back(
      {"s", {{"model", "m"}}, {"x"}, {{{"1"}, "{}", "s/points/k", {{1, 2, true, false}}}}});
  const std::string html = report_html(report);
  const auto has = [&](const char* text) { return html.find(text) != std::string::npos; };
  CHECK(has(R"("slos":[{"text":"ttft_p99<2s","figure":"ttft_p99_ms","limit":2000.0},)") == false);
  CHECK(has(R"("slos":[{"text":"ttft_p99\u003c2s","figure":"ttft_p99_ms","limit":2000.0},)"));
  CHECK(has(R"("metrics":{"busy":["fraction","of engine time, in which a step runs"]})"));
  CHECK(has(R"("setting":[["model","m"],["GPU","h200 × TP 1 × 1 engine"]],"limited_by":"nothing",)"));
  CHECK(has(R"("slos":[[12.5,0.00625,true],null])"));
  CHECK(has(R"({"dir":"s","setting":[["model","m"]],"axes":["x"],)"));
  CHECK(has(R"({"values":["1"],"dir":"s/points/k","slos":[[1.0,2.0,false]],"metrics":{}})"));
  CHECK(report_html(report) == html);
}

TEST_CASE(
    "report: Markdown has the verdicts of the SLOs, reuse, price, what limits a run, and shared notes once") {
  Report report = report_of("a");
  report.runs[0].summary = R"({"prefix_reuse":0.829,"usd_per_million_output_tokens":10.5})";
  report.runs[0].limited_by = "GPU time";
  report.runs[0].result.add_notes("think times are capped");
  report.runs.push_back(report.runs[0]);
  report.runs[1].dir = "b";
  report.runs[1].result.add_notes("pages are given");
  report.slos = {{"ttft_p99<2s", "ttft_p99_ms", 2000}};
  report.runs[0].slos = {{12.5, 0.75, true, true}};
  report.runs[1].slos = {{12.5, 1.5, true, false}};
  report.sweeps.push_back(
      {"s", {}, {"x"}, {{{"1"}, "{}", "p", {{1, 2, true, false}}}}, "kvtwin sweep x", {{3, "too large"}}});
  const std::string text = report_markdown(report);
  for (const char* part :
       {"| ttft_p99<2s | kept: 12.5 ms, 75 % used | broken: 12.5 ms, 150 % used |\n",
        "| prefix reuse | 82.9 % | 82.9 % |\n", "| $ per million output tokens | 10.5 | 10.5 |\n",
        "\na is limited by GPU time.\n", "\nNote: think times are capped\n", "\nb: pages are given\n",
        "| SLOs |\n", "| broken |\n", "\n3 points failed: too large\n", "\n`kvtwin sweep x`\n"}) {
    CAPTURE(text);
    CHECK_MESSAGE(text.find(part) != std::string::npos, part);
  }
  CHECK(text.find("think times", text.find("think times") + 1) == std::string::npos);
  const std::string html = report_html(report);
  CHECK(html.find(R"("command":"kvtwin sweep x","failures":[{"points":3,"error":"too large"}])") !=
        std::string::npos);
}

TEST_CASE("report: a plan is its sentences and its table, and the page has its data") {
  Report report;
  report.command = "kvtwin report p";
  report.plans.push_back({"p", R"({"load":"l","need":2,"answer":["a|b holds 3.","Beyond: 4."],)"
                               R"("table":[["node","$/h"],["h100","3.00"]],"candidates":[]})"});
  const std::string text = report_markdown(report);
  CHECK(text.find("## Plan p\n\na|b holds 3.\nBeyond: 4.\n\n| node | $/h |\n") != std::string::npos);
  CHECK(text.find("\n| h100 | 3.00 |\n") != std::string::npos);
  CHECK(report_html(report).find(R"("plans":[{"dir":"p","data":{"load":"l","need":2,)") != std::string::npos);
}

TEST_CASE("report: right answers against bytes, and the policies that no other beats") {
  Report report = report_of("a");
  const auto row = [](const char* policy, int budget, const char* task, double accuracy, double kept,
                      double read) {
    return nlohmann::json{{"policy", policy},
                          {"budget", budget},
                          {"task", task},
                          {"accuracy", accuracy},
                          {"accuracy_low", accuracy - 0.1},
                          {"accuracy_high", accuracy},
                          {"kv_bytes_mean", kept},
                          {"kv_read_bytes_mean", read}};
  };
  nlohmann::json rows = {row("full", 0, "a", 1.0, 4e6, 4e6),   row("full", 0, "b", 0.9, 2e6, 2e6),
                         row("best", 64, "a", 0.9, 1e6, 1e6),  row("best", 64, "b", 0.9, 1e6, 1e6),
                         row("bad", 64, "a", 0.9, 1e6, 1e6),   row("bad", 64, "b", 0.5, 1e6, 1e6),
                         row("reads", 64, "a", 0.8, 4e6, 5e5), row("reads", 64, "b", 0.8, 4e6, 5e5),
                         row("half", 64, "a", 1.0, 1e3, 1e3)};
  rows.push_back({{"policy", "none"}, {"task", "c"}, {"refused", "no"}});
  report.qualities.push_back({"q", rows.dump()});
  const std::string text = report_markdown(report);
  CHECK(text.find("|  | KV entries | a | b | KV retained, MB | KV read per token, MB | front |") !=
        std::string::npos);
  CHECK(text.find("| full | all | 100.0 % [90 100] | 90.0 % [80 90] | 3.000 | 3.000 | * |") !=
        std::string::npos);
  CHECK(text.find("| best | 64 | 90.0 % [80 90] | 90.0 % [80 90] | 1.000 | 1.000 | * |") !=
        std::string::npos);
  CHECK(text.find("| bad | 64 | 90.0 % [80 90] | 50.0 % [40 50] | 1.000 | 1.000 |  |") != std::string::npos);
  CHECK(text.find("| reads | 64 | 80.0 % [70 80] | 80.0 % [70 80] | 4.000 | 0.500 | * |") !=
        std::string::npos);
  CHECK(text.find("| half | 64 | 100.0 % [90 100] | - | 0.001 | 0.001 | - |") != std::string::npos);
  CHECK(text.find("none") == std::string::npos);
}

TEST_CASE("report: simulated throughput is a column, and replaces bytes read in the front") {
  Report report = report_of("s");
  const auto row = [](const char* policy, double accuracy, double kept, nlohmann::json speed) {
    return nlohmann::json{{"policy", policy},
                          {"budget", 64},
                          {"task", "a"},
                          {"accuracy", accuracy},
                          {"kv_bytes_mean", kept},
                          {"kv_read_bytes_mean", 1e6},
                          {"simulated_tokens_per_s", std::move(speed)}};
  };
  const nlohmann::json rows = {row("wide", 1.0, 4e6, 1000), row("fast", 0.9, 4e6, 2000),
                               row("slow", 0.9, 4e6, 1500), row("unknown", 1.0, 1e6, nullptr),
                               row("an_oracle", 1.0, 1e6, 9000)};
  report.qualities.push_back({"q", rows.dump()});
  const std::string text = report_markdown(report);
  CHECK(text.find("| KV read per token, MB | tokens/s, simulated | front |") != std::string::npos);
  CHECK(text.find("| wide | 64 | 100.0 % | 4.000 | 1.000 | 1000 | * |") != std::string::npos);
  CHECK(text.find("| fast | 64 | 90.0 % | 4.000 | 1.000 | 2000 | * |") != std::string::npos);
  CHECK(text.find("| slow | 64 | 90.0 % | 4.000 | 1.000 | 1500 |  |") != std::string::npos);
  CHECK(text.find("| unknown | 64 | 100.0 % | 1.000 | 1.000 | - | - |") != std::string::npos);
  CHECK(text.find("| an_oracle | 64 | 100.0 % | 1.000 | 1.000 | 9000 | - |") != std::string::npos);
}

TEST_CASE("report: thinned requests are evenly spaced, and no more than requested") {
  RequestsTable requests;
  requests.sessions = {"a"};
  for (uint32_t i = 0; i < 1000; ++i) {
    requests.ready_s.push_back(i);
    for (auto* column : {&requests.queue_s, &requests.ttft_s, &requests.e2e_s}) column->push_back(1);
    for (auto* column : {&requests.prompt, &requests.output, &requests.reused, &requests.session})
      column->push_back(0);
  }
  CHECK(requests.thinned(1000).count() == 1000);
  const RequestsTable few = requests.thinned(300);
  CHECK(few.count() == 250);
  CHECK(few.ready_s[1] == 4);
}

TEST_CASE("report: nothing in the data can end the page's script or a table's cell") {
  const std::string session = "</script><script>alert(1)</script>|";
  const Report report = report_of(session);
  const std::string markdown = report_markdown(report);
  CHECK(markdown.find("| TTFT P99, ms | 12.5 |") != std::string::npos);
  const std::string page = report_html(report);
  CHECK(page.find("alert(1)</script>") == std::string::npos);
  const size_t begin = page.find("id=\"report\">") + 12, end = page.find("</script>", begin);
  const auto data = nlohmann::json::parse(page.substr(begin, end - begin));
  CHECK(data["runs"][0]["sessions"][0] == session);
  CHECK(data["runs"][0]["requests"]["queue_s"] == "AAAAPw==");  // 0.5f
  CHECK(data["runs"][0]["requests"]["ready_s"] == "AAAAAAAA8D8=");
  CHECK(page.find("/*DATA*/") == std::string::npos);
}

# traces/more -- session builder, synthesisers and the importers of chat logs.
add_library(kvtwin_traces_more STATIC
  session_builder.cc make_task.cc task_kinds.cc task_session.cc synthesize.cc synthesize_draws.cc
  synthesize_search.cc synthesize_osworld.cc synthesize_dialogue.cc synthesize_coding.cc
  claude_calls.cc claude_log.cc claude_session.cc import_claude_code.cc import_tau_bench.cc import_applied_compute.cc)
target_link_libraries(kvtwin_traces_more PUBLIC kvtwin_traces
                      PRIVATE fmt::fmt nlohmann_json::nlohmann_json)
# formats.cc lists the importers that live here, and they use what kvtwin_traces has: static libraries may.
target_link_libraries(kvtwin_traces PRIVATE kvtwin_traces_more)

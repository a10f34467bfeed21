# traces/more -- session builder, synthesisers and the importers of chat logs.
add_library(kvtwin_traces_more STATIC
  session_builder.cc synthesize.cc synthesize_draws.cc
  synthesize_search.cc synthesize_osworld.cc synthesize_dialogue.cc synthesize_coding.cc)
target_link_libraries(kvtwin_traces_more PUBLIC kvtwin_traces
                      PRIVATE fmt::fmt nlohmann_json::nlohmann_json)

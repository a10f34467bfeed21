# traces/replay* -- the Client: sessions as DAGs, waits, arrivals, identities. See traces/replay.h.
add_library(kvtwin_replay STATIC
  replay.cc replay_arrivals.cc replay_builder.cc replay_chain.cc replay_identity.cc replay_options.cc replay_resolve.cc replay_roles.cc
  replay_session.cc)
target_link_libraries(kvtwin_replay PUBLIC kvtwin_policy kvtwin_proto PRIVATE fmt::fmt)

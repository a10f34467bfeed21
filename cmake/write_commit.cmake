# Run at every build: writes OUT, a .cc with the commit of SOURCE, when that differs from what OUT has.
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(commit "unknown")
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "extern const char* const kvtwin_commit;
const char* const kvtwin_commit = \"${commit}\";
")

# Runs at every build: writes OUT, a .cc with the commit of SOURCE, if it differs from the content of OUT.
if(NOT GIT)
  set(GIT git)
endif()

# The commit of the repository's HEAD, read from its files: for machines without git, where "-dirty" is
# unknown.
function(read_commit source result)
  set(${result} unknown PARENT_SCOPE)
  set(dir ${source}/.git)
  if(EXISTS ${dir} AND NOT IS_DIRECTORY ${dir})  # a worktree: "gitdir: FOLDER"
    file(STRINGS ${dir} pointer LIMIT_COUNT 1)
    string(REGEX REPLACE "^gitdir: " "" pointer "${pointer}")
    get_filename_component(dir "${pointer}" ABSOLUTE BASE_DIR ${source})
  endif()
  if(NOT EXISTS ${dir}/HEAD)
    return()
  endif()
  set(refs ${dir})
  if(EXISTS ${dir}/commondir)  # the folder with a worktree's branches
    file(STRINGS ${dir}/commondir common LIMIT_COUNT 1)
    get_filename_component(refs "${common}" ABSOLUTE BASE_DIR ${dir})
  endif()
  file(STRINGS ${dir}/HEAD commit LIMIT_COUNT 1)
  if(commit MATCHES "^ref: (.+)$")
    set(branch "${CMAKE_MATCH_1}")
    set(commit "")
    if(EXISTS ${refs}/${branch})
      file(STRINGS ${refs}/${branch} commit LIMIT_COUNT 1)
    elseif(EXISTS ${refs}/packed-refs)
      file(STRINGS ${refs}/packed-refs lines)
      foreach(line IN LISTS lines)
        if(line MATCHES "^([0-9a-f]+) (.+)$" AND CMAKE_MATCH_2 STREQUAL branch)
          set(commit "${CMAKE_MATCH_1}")
        endif()
      endforeach()
    endif()
  endif()
  if(commit MATCHES "^[0-9a-f]+$")
    string(SUBSTRING "${commit}" 0 12 commit)
    set(${result} ${commit} PARENT_SCOPE)
  endif()
endfunction()

execute_process(COMMAND ${GIT} -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  read_commit(${SOURCE} commit)
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "extern const char* const kvtwin_commit;
const char* const kvtwin_commit = \"${commit}\";
")

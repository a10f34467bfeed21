# Tests cmake/write_commit.cmake without git: -DSCRIPT=... -DWORK=... (a scratch folder).
set(sha 0123456789abcdef0123456789abcdef01234567)
file(REMOVE_RECURSE ${WORK})

# The repository ${WORK}/${name} gives `expected`.
function(expect name expected)
  execute_process(COMMAND ${CMAKE_COMMAND} -DGIT=no-such-git -DSOURCE=${WORK}/${name} -DOUT=${WORK}/${name}.cc -P ${SCRIPT}
                  RESULT_VARIABLE failed)
  file(READ ${WORK}/${name}.cc text)
  if(failed OR NOT text MATCHES "= \"${expected}\";")
    message(SEND_ERROR "${name}: expected ${expected}, got ${text}")
  endif()
endfunction()

file(WRITE ${WORK}/detached/.git/HEAD "${sha}\n")
expect(detached 0123456789ab)

file(WRITE ${WORK}/branch/.git/HEAD "ref: refs/heads/a/b\n")
file(WRITE ${WORK}/branch/.git/refs/heads/a/b "${sha}\n")
expect(branch 0123456789ab)

file(WRITE ${WORK}/packed/.git/HEAD "ref: refs/heads/main\n")
file(WRITE ${WORK}/packed/.git/packed-refs
     "# pack-refs with: peeled fully-peeled sorted\nfedcba9876543210fedcba9876543210fedcba98 refs/heads/main2\n${sha} refs/heads/main\n")
expect(packed 0123456789ab)

file(WRITE ${WORK}/worktree/.git "gitdir: ../branch/.git/worktrees/w\n")
file(WRITE ${WORK}/branch/.git/worktrees/w/HEAD "ref: refs/heads/a/b\n")
file(WRITE ${WORK}/branch/.git/worktrees/w/commondir "../..\n")
expect(worktree 0123456789ab)

file(WRITE ${WORK}/unborn/.git/HEAD "ref: refs/heads/main\n")
expect(unborn unknown)
file(MAKE_DIRECTORY ${WORK}/archive)
expect(archive unknown)

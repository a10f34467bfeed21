// Runs a simulation in a child process and returns its output, because SimGrid allows one engine per process
// and a test needs many.

#ifndef KVTWIN_TESTS_UNIT_SIM_IN_CHILD_H_
#define KVTWIN_TESTS_UNIT_SIM_IN_CHILD_H_

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <string>

namespace kvtwin::testing {

// The result of `work`, or "died: ..." if the child failed.
inline std::string in_child(const std::function<std::string()>& work) {
  int ends[2];
  if (pipe(ends) != 0) return "died: no pipe";
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    alarm(60);  // a simulation that hangs must not hang the tests
    const std::string text = work();
    for (size_t sent = 0; sent < text.size();) {
      const ssize_t count = write(ends[1], text.data() + sent, text.size() - sent);
      if (count <= 0) _exit(3);
      sent += static_cast<size_t>(count);
    }
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char buffer[65536];
  for (ssize_t count; (count = read(ends[0], buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<size_t>(count));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? text : "died: status " + std::to_string(status) + "\n" + text;
}

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_UNIT_SIM_IN_CHILD_H_

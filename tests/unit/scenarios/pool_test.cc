// The process pool: no lane runs more processes than its limit, and lanes do not wait for each other.

#include "scenarios/sweep/pool.h"

#include <doctest/doctest.h>

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/folder.h"

namespace kvtwin {
namespace {

// A job that logs its begin and end by appending to its lane's file.
Job job(const testing::Folder& folder, size_t lane, const std::string& between) {
  const std::string log = folder.file("lane" + std::to_string(lane));
  return {{"-c", "echo + >> " + log + "; " + between + "; echo - >> " + log}, folder.file("errors"), lane};
}

int most_at_once(const testing::Folder& folder, const std::string& name, size_t* begun) {
  std::istringstream lines(folder.read(name));
  int now = 0, most = 0;
  for (std::string line; std::getline(lines, line);) {
    now += line == "+" ? 1 : -1;
    *begun += line == "+";
    most = std::max(most, now);
  }
  return most;
}

TEST_CASE("run_jobs: each lane has its own limit, and lanes run concurrently") {
  const testing::Folder folder;
  std::vector<Job> jobs;
  for (int i = 0; i < 4; ++i) jobs.push_back(job(folder, 0, "sleep 0.05"));
  // The first job of lane 1 waits for lane 0's last, and must not delay lane 0.
  jobs.push_back(
      job(folder, 1, "while [ $(wc -l < " + folder.file("lane0") + ") -lt 8 ]; do sleep 0.02; done"));
  for (int i = 0; i < 5; ++i) jobs.push_back(job(folder, 1, "sleep 0.05"));
  std::map<size_t, int> ended;
  REQUIRE(run_jobs("/bin/sh", jobs, {1, 3}, [&](const JobEnd& end) {
    CHECK(end.status == 0);
    ++ended[end.job];
    return true;
  }));
  CHECK(ended.size() == jobs.size());
  size_t begun = 0;
  CHECK(most_at_once(folder, "lane0", &begun) == 1);
  const int most = most_at_once(folder, "lane1", &begun);
  CHECK((most >= 2 && most <= 3));
  CHECK(begun == jobs.size());
}

TEST_CASE("run_jobs: a callback that returns false stops the pool, and a failed exit is reported") {
  const testing::Folder folder;
  const std::vector<Job> jobs = {job(folder, 0, "exit 7"), job(folder, 0, "true"), job(folder, 0, "true")};
  std::vector<int> statuses;
  REQUIRE(run_jobs("/bin/sh", jobs, {1}, [&](const JobEnd& end) {
    statuses.push_back(end.status);
    return false;
  }));
  CHECK(statuses == std::vector<int>{7});
}

}  // namespace
}  // namespace kvtwin

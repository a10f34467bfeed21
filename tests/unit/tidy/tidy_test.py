#!/usr/bin/env python3
"""The rules applied to the whole tree, and each rule applied to a text that breaks it.

  tidy_test.py REGISTERED_METHODS
"""

import functools
import re
import subprocess
import sys
import unittest

import doc_rules
import source_rules
from source_rules import SOURCE, File

FOLDERS = ("engine", "kernels", "models", "sim", "traces", "scenarios", "reports", "tests")
CODE = (".h", ".cc", ".cu", ".cuh")
REFERRING = ("cmake", "docs") + FOLDERS
REFERRING_ENDINGS = CODE + (".md", ".proto", ".textproto", ".py", ".sh", ".ts", ".txt", ".cmake", ".mjs")
REGISTERED = [tuple(line.split()) for line in
           subprocess.run([sys.argv.pop(1)], check=True, capture_output=True, text=True).stdout.splitlines()]
read_sources = functools.cache(source_rules.read_sources)


class Tidy(unittest.TestCase):
    maxDiff = None

    def none(self, findings):
        self.assertEqual(list(findings), [])

    def over(self, rule, *more, folders=FOLDERS, endings=CODE):
        files = read_sources(folders, endings)
        self.assertGreater(len(files), 10)
        self.none(finding for file in files for finding in rule(file, *more))


class Tree(Tidy):
    def test_includes_point_downwards(self):
        self.over(source_rules.includes)

    def test_no_methods_name_is_compared_outside_engine_methods(self):
        self.over(source_rules.method_names, REGISTERED)

    def test_few_files_name_a_method_in_code(self):
        """Names in comments are references to a method's paper, and those in scenarios/ are what users write."""
        files = read_sources(("engine", "kernels", "models", "sim", "traces", "reports"), CODE + (".proto",))
        for name, most in (("tova", 4), ("freekv", 8), ("triaxial", 12)):
            naming = source_rules.files_naming(files, name)
            self.assertTrue(0 < len(naming) <= most, naming)

    def test_folders_do_not_include_one_another_in_cycles(self):
        self.none(source_rules.folder_cycles(read_sources(FOLDERS, CODE)))

    def test_the_policy_has_no_clock_no_randomness_and_no_backend(self):
        self.over(source_rules.policy_words)

    def test_the_scheduler_knows_neither_layouts_of_kv_nor_methods(self):
        methods = source_rules.unmistakable(REGISTERED)
        self.assertGreater(len(methods), 30)
        self.over(source_rules.scheduler_words, methods)
        # What it knows of a request.
        request = source_rules.count_fields((SOURCE / "engine/scheduler/request.h").read_text(), "Request")
        progress = source_rules.count_fields((SOURCE / "engine/kv/request_progress.h").read_text(), "RequestProgress")
        self.assertGreater(request, 5)
        self.assertEqual(progress, 6)
        self.assertLessEqual(request + progress, 20)

    def test_files_functions_and_lines_stay_short(self):
        self.over(source_rules.lengths)

    def test_a_headers_guard_is_its_path(self):
        self.over(source_rules.guard, endings=(".h",))

    def test_a_source_includes_its_own_header_first(self):
        """This compiles each header that has a .cc alone; CMakeLists.txt compiles the other headers."""
        headers = {file.path for file in read_sources(FOLDERS, (".h",))}
        self.none(finding for file in read_sources(FOLDERS, (".cc",)) if file.path[:-3] + ".h" in headers
                  for finding in source_rules.own_header_first(file))

    def test_no_notes_to_self_and_no_path_of_another_machine(self):
        self.over(source_rules.left_overs,
                  endings=(".h", ".cc", ".cu", ".md", ".txt", ".cmake", ".proto", ".textproto", ".json"))

    def test_every_scenario_that_a_readme_names_exists(self):
        for file in read_sources(FOLDERS, (".md",)):
            for path in re.findall(r"scenarios/[\w/.-]*?\.textproto", file.text):
                self.assertTrue((SOURCE / path).exists(), f"{file.path} names {path}")

    def test_every_reference_to_docs_resolves(self):
        anchors = doc_rules.read_anchors(read_sources(("docs",), (".md",)))
        self.assertGreater(len(anchors), 10)
        files = read_sources(REFERRING, REFERRING_ENDINGS)
        self.assertGreater(sum("docs" + "/design/" in file.text for file in files), 100)
        self.over(doc_rules.references, anchors, folders=REFERRING, endings=REFERRING_ENDINGS)

    def test_documents_that_are_not_in_the_repository_are_not_referenced(self):
        for file in read_sources(REFERRING, REFERRING_ENDINGS):
            if not file.path.startswith("reports/evidence/"):  # dated records
                self.none(doc_rules.retired_documents(file))


class RetiredNames(Tidy):
    """None comes back, and users who write one get its successor."""

    def setUp(self):
        listed = (SOURCE / "tests/unit/tidy/retired_identifiers.tsv").read_text()
        self.names = dict(line.split("\t") for line in listed.splitlines() if "\t" in line)
        self.assertGreater(len(self.names), 500)

    def test_retired_identifiers_stay_out(self):
        self.over(source_rules.retired, self.names,
                  endings=CODE + (".proto", ".textproto", ".ts", ".py", ".sh", ".cmake"))

    def test_no_successor_is_itself_retired(self):
        """It would send users in a circle."""
        told = re.findall(r'\{"([^"]+)", "([^"]+)"\}', (SOURCE / "engine/base/retired_names.h").read_text())
        self.assertGreater(len(told), 40)
        for old, now in [*self.names.items(), *told]:
            self.assertNotEqual(old, now)
            self.assertNotIn(now, self.names, f"{old} -> {now}")
        for old, now in told:
            self.assertEqual(self.names.get(old, now), now, f"{old} has two successors")


class EachRuleFindsAViolation(Tidy):
    def check(self, count, rule, path, text, *more):
        self.assertEqual(len(list(rule(File(path, text), *more))), count, text)

    def test_includes(self):
        for count, path, line in ((1, "engine/scheduler/x.cc", '"engine/runtime/driver.h"'),
                                  (0, "engine/scheduler/x.cc", '"engine/base/check.h"'),
                                  (1, "traces/import_x.cc", '"engine/runtime/client.h"'),
                                  (0, "traces/replay/replay.cc", '"engine/runtime/client.h"'),
                                  (1, "models/x.cc", "<simgrid/s4u.hpp>"), (0, "sim/x.cc", "<simgrid/s4u.hpp>"),
                                  (2, "engine/scheduler/x.cc", '"traces/proto/run.pb.h"'),
                                  (1, "engine/kv/x.cc", '"engine/methods/axes.h"'),
                                  (1, "sim/clock/x.cc", '"engine/cpu/forward.h"')):
            self.check(count, source_rules.includes, path, f"#include {line}\n")
        down = File("a/x.cc", '#include "b/y.h"\n#include "a/z.h"\n')
        for text, cycles in (("#include <a/z.h>\n", []), ('#include "a/z.h"\n', ["a -> b -> a"])):
            self.assertEqual(list(source_rules.folder_cycles([down, File("b/y.h", text)])), cycles)

    def test_words(self):
        for count, path, text in ((1, "engine/scheduler/x.cc", "#include <chrono>\n"),
                                  (1, "engine/scheduler/x.cc", "double ratio;\n"),
                                  (1, "engine/kv/x.cc", "double ratio;\n"),
                                  (0, "engine/scheduler/x.cc", "int doubled = 1;  // a double\n"),
                                  (0, "sim/x.cc", "double ratio;\n")):
            self.check(count, source_rules.policy_words, path, text)
        modal = "if (retention.keeps_all()) plan();  // as freekv does\n"
        self.check(2, source_rules.scheduler_words, "engine/scheduler/x.cc", modal, ["freekv"])
        self.check(0, source_rules.scheduler_words, "engine/kv/x.cc", modal, ["freekv"])
        self.check(1, source_rules.scheduler_words, "engine/scheduler/x.h", "bool resident_ = false;\n", [])
        self.assertEqual(source_rules.unmistakable([("scorer", "h2o"), ("budget", "all")]), ["h2o"])

    def test_names_of_methods(self):
        methods = [("retrieval", "all"), ("retrieval", "freekv"), ("precision", "int4")]
        for count, path, code in ((1, "scenarios/x.cc", 'if (set.retrieval != "all") go();\n'),
                                  (1, "engine/cpu/x.cc", 'if (axes.retrieval() == "all") go();\n'),
                                  (1, "sim/x.cc", 'if (name == "freekv") go();\n'),
                                  (0, "scenarios/x.cc", 'if (of == "all" || weights == "int4") go();\n'),
                                  (0, "engine/methods/x.cc", 'if (name == "freekv") go();\n')):
            self.check(count, source_rules.method_names, path, code, methods)
        naming = [File("a.cc", "// as FreeKV does\n"), File("b.cc", "x();\nset_freekv();  // one\n"),
                  File("c.cc", '"FreeKV"\n')]
        self.assertEqual(source_rules.files_naming(naming, "freekv"), ["b.cc", "c.cc"])
        struct = "struct X {\n  enum class E { kA };\n  int a = 0, b;\n  bool f() const;\n  E e;  // ;\n};\n"
        self.assertEqual(source_rules.count_fields(struct, "X"), 3)

    def test_lengths(self):
        line = "  go();\n"
        for count, text in ((0, "void f() {\n" + 68 * line + "}\n"), (1, "void f() {\n" + 69 * line + "}\n"),
                            (1, "X::X(int a)\n    : a_{a},\n      b_(2) {\n" + 69 * line + "}\n"),
                            (0, "class X {\n" + 100 * "  void f();\n" + "};\n"),
                            (0, "const std::vector<int> kTable = {\n" + 100 * "    1,\n" + "};\n"),
                            (1, "void f() {}\n" + 500 * line), (1, "// " + 108 * "x" + "\n"),
                            (0, 'const char* text = "' + 108 * "x" + '";\n'),
                            (0, "auto brace = '{'; auto text = \"{(\"; auto thousand = 1'000;\n" + 80 * line)):
            self.check(count, source_rules.lengths, "engine/x.cc", text)

    def test_headers_and_left_overs(self):
        self.check(1, source_rules.guard, "engine/x.h", "#ifndef X_H\n#define X_H\n#endif\n")
        first = source_rules.own_header_first
        self.check(1, first, "sim/x.cc", '#include <vector>\n#include "sim/x.h"\n')
        self.check(0, first, "sim/x.cc", '#include "sim/x.h"\n')
        self.check(1, source_rules.left_overs, "sim/x.cc", "// FIX" + "ME later\n")

    def test_retired_identifiers(self):
        names = {"old_" + "name": "new_name"}
        found = list(source_rules.retired(File("engine/x.cc", "int a;\nint old_" + "name = 1;\n"), names))
        self.assertEqual(found, ["engine/x.cc:2: old_" + "name is called new_name now"])
        self.check(0, source_rules.retired, "engine/x.cc", "int older_name = old_names;\n", names)

    def test_references(self):
        page = "docs" + "/design/page.md"  # split in two, so that this file passes its own test
        none = "docs" + "/design/none.md"
        anchors = doc_rules.read_anchors([File(
            page, '# A page\n\n<a id="first"></a>\n\n## The first part: why\n\n## Plain words\n')])
        for text, *found in ((f"// As in {page}#first.\n",), (f"// As in {page}.\n",),
                             (f"// {page}#first, #plain-words; {page}#first\n",),
                             (f"// https://example.org/{page}#other\n",),
                             (f"\n// As in {page}#second.\n", f"x.h:2: {page} has no anchor #second"),
                             (f"// {page}#first, #second\n", f"x.h:1: {page} has no anchor #second"),
                             (f"// {page}#first,\n// #second\n", f"x.h:2: {page} has no anchor #second"),
                             (f"# {page}#first and\n# #second\n", f"x.h:2: {page} has no anchor #second"),
                             (f"// {page}#the-first-part-why\n",  # not plain words
                              f"x.h:1: {page} has no anchor #the-first-part-why"),
                             (f"// {none}#first\n", f"x.h:1: {none} does not exist")):
            self.assertEqual(list(doc_rules.references(File("x.h", text), anchors)), found)

    def test_retired_documents(self):
        methods, simgrid = "METH" + "ODS", "SIMG" + "RID"
        for count, text in ((1, f"\n// As in {methods} 2.4.\n"), (0, f"#ifndef KVTWIN_{methods}_H_\n"),
                            (1, f"// {simgrid} 4.1\n"), (0, f"kvtwin_optional({simgrid} ON)\n")):
            self.check(count, doc_rules.retired_documents, "engine/x.h", text)


unittest.main()

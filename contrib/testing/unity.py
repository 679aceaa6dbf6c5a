#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Has a build folder's C++ sources compiled several at a time, each library's and program's with one another: two thirds of the time that
the sanitizers' build takes is spent on the same headers and templates again and again.

    contrib/testing/unity.py BUILD && MAKEFILES=BUILD/unity.mk make -C BUILD ...

It writes BUILD/unity/*.cpp, which include the sources, and BUILD/unity.mk, which sets automake's lists of objects accordingly. Sources that
define the same name beside all functions come into different groups. For tests only: what is installed is compiled source by source."""
import argparse
import collections
import os
import re
import subprocess
import sys

GROUP_LINES = 3000  # of a group's sources: one compiler's memory and time stay small, and all cores have work
NAMED = re.compile(r"""(?:struct|class|enum(?:\ class)?|union)\s+(\w+)[^;]*$
                   | (?:using|namespace)\s+(\w+)\s*=
                   | BOOST_\w+_TEST_CASE\w*\(\s*(\w+)
                   | ^[^=({]*?(?<![:~\w])(\w+)\s*(?:\(|\{|\[|;)    # a function, or an object made by its constructor""", re.X)
CONSTANTS = re.compile(r"^(?:constexpr|const|static|inline|thread_local)\b.*;")  # several, it may be
CONSTANT = re.compile(r"(?<![:.\w])(\w+)(?:\[\w*\])?\s*(?:=[^=]|\(|\{)")


def defined_names(path):
    """Names that stand at the beginning of a line's scope: the sources are formatted, what is inside of functions and types is indented."""
    names = set()
    with open(path) as f:
        for line in f:
            if not re.match(r"[A-Za-z]", line) or re.match(r"namespace [\w:]* ?\{|extern|return", line):
                continue
            match = NAMED.search(line)
            if match:
                names.update(name for name in match.groups() if name)
            if CONSTANTS.match(line):
                names.update(CONSTANT.findall(line))
    return names


class Target:
    """One of automake's lists of objects."""

    def __init__(self, variable, objects):
        self.variable, self.objects = variable, objects
        self.name = variable[len("am_"):-len("_OBJECTS")]


class Build:
    def __init__(self, folder):
        self.folder = folder
        subprocess.run(["make", "-s", "Makefile"], cwd=folder, check=True, stdout=subprocess.DEVNULL)  # where configure.ac or the like is newer
        self.source = self.printed("abs_srcdir")[0]
        with open(os.path.join(folder, "Makefile")) as f:
            variables = re.findall(r"^(am_\w+_OBJECTS) =", f.read(), re.M)
        self.targets = [Target(variable, self.printed(variable)) for variable in variables]
        # What several have is compiled once for all of them, or is one's in place of another's.
        counts = collections.Counter(self.path_of(name, target)[0] for target in self.targets for name in target.objects)
        self.shared = {path for path, count in counts.items() if count > 1}

    def printed(self, variable):
        out = subprocess.run(["make", "-s", "--no-print-directory", "--eval", f"unity-print: ; @echo $({variable})", "unity-print"], cwd=self.folder,
                             check=True, capture_output=True, text=True).stdout
        return out.split()

    def path_of(self, name, target):
        """Of an object's source, if that is C++, and whether it is compiled with flags of its target."""
        folder, file = os.path.split(name)
        stem = os.path.splitext(file)[0]
        own = stem.startswith(target.name + "-")
        return os.path.join(self.source, folder, (stem[len(target.name) + 1:] if own else stem) + ".cpp"), own

    def source_of(self, name, target):
        """The same; (None, False) for what is left as it is."""
        path, own = self.path_of(name, target)
        if path in self.shared or not os.path.exists(path):
            return None, False
        with open(path) as f:
            if re.search(r"^#define", f.read(), re.M):
                return None, False
        return path, own


def groups_of(sources):
    """[(object, path)] in groups without a name twice, whose members look names up in the same namespaces."""
    groups = []
    for name, path in sources:
        names = defined_names(path)
        with open(path) as f:
            text = f.read()
        lines, used = text.count("\n"), set(re.findall(r"^using namespace (?!std)([\w:]+)", text, re.M))
        for group in groups:
            if group["used"] == used and not group["names"] & names and group["lines"] + lines <= GROUP_LINES:
                break
        else:
            group = {"used": used, "names": set(), "lines": 0, "members": []}
            groups.append(group)
        group["names"] |= names
        group["lines"] += lines
        group["members"].append((name, path))
    return [group["members"] for group in groups]


def write_target(build, target, makefile):
    apart = []
    kinds = {False: [], True: []}
    for name in target.objects:
        path, own = build.source_of(name, target)
        (kinds[own] if path else apart).append((name, path))
    objects = [name for name, _ in apart]
    for own, sources in kinds.items():
        for i, group in enumerate(groups_of(sources)):
            if len(group) == 1:
                objects.append(group[0][0])
                continue
            unit = f"unity/{target.name}{'-own' if own else ''}-{i}"
            with open(os.path.join(build.folder, unit + ".cpp"), "w") as f:
                f.writelines(f'#include "{path}"\n' for _, path in group)
            extension = os.path.splitext(group[0][0])[1]
            objects.append(unit + extension)
            if own:
                makefile.write(own_rule(target, unit, extension))
    if objects != target.objects:
        makefile.write(f"override {target.variable} := {' '.join(objects)}\n")


def own_rule(target, unit, extension):
    libtool = "$(LIBTOOL) $(AM_V_lt) --tag=CXX --mode=compile " if extension == ".lo" else ""
    flags = f"$(or $({target.name}_CPPFLAGS),$(AM_CPPFLAGS)) $(CPPFLAGS) $(or $({target.name}_CXXFLAGS),$(AM_CXXFLAGS)) $(CXXFLAGS)"
    return f"{unit}{extension}: {unit}.cpp\n\t$(AM_V_CXX){libtool}$(CXX) $(DEFS) $(DEFAULT_INCLUDES) $(INCLUDES) {flags} -c -o $@ $<\n"


def main():
    parser = argparse.ArgumentParser(prog="unity.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", help="a configured build folder")
    folder = os.path.abspath(parser.parse_args().build)
    os.makedirs(os.path.join(folder, "unity", ".deps"), exist_ok=True)
    build = Build(folder)
    if not build.targets:
        sys.exit(f"unity.py: no automake lists of objects in {folder}/Makefile")
    with open(os.path.join(folder, "unity.mk"), "w") as makefile:
        for target in build.targets:
            write_target(build, target, makefile)
    return 0


if __name__ == "__main__":
    sys.exit(main())

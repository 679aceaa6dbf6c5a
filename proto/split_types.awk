# SPDX-License-Identifier: Apache-2.0
# Of a header by `flatc --cpp --gen-object-api`: -v part=types: enums and what messages are in a program (the T structs and their
# unions), which is what most files need; -v part=tables: the rest, which turns them into bytes and back. `name` is the schema's.
# The whole header takes a compiler several times as long as the types.

function classify(line) {
    if (line ~ /^(namespace .*\{|\}  \/\/ namespace .*)$/) return "both"
    if (line ~ /^struct [A-Za-z0-9_]+;$/) return "types"
    if (line ~ /^enum class /) return "types"
    if (line ~ /^inline .*EnumNames?[A-Z]|^inline .*EnumValues[A-Z]/) return "types"
    if (line ~ /^template<.*> struct [A-Za-z0-9_]+Traits/) return "types"
    if (line ~ /^struct [A-Za-z0-9_]+Union \{/) return "types"
    if (line ~ /^inline [A-Za-z0-9_]+Union::[A-Za-z0-9_]+Union\(/) return "types"
    if (line ~ /^inline void [A-Za-z0-9_]+Union::Reset\(/) return "types"
    if (line ~ /^FLATBUFFERS_(MANUALLY_ALIGNED_STRUCT|STRUCT_END|DEFINE_BITMASK_OPERATORS)\(/) return "types"
    if (line ~ /^struct [A-Za-z0-9_]+T : public .*NativeTable/) return "types"
    if (line ~ /^inline [A-Za-z0-9_]+T::[A-Za-z0-9_]+T\(/) return "types"
    if (line ~ /^inline [A-Za-z0-9_]+T &[A-Za-z0-9_]+T::operator=/) return "types"
    return "tables"
}

BEGIN {
    print "// Made from " name ".fbs: proto/split_types.awk\n#pragma once\n"
    if (part == "tables") print "#include \"" name "_types.h\"\n"
}

# The guard of the whole, and comments of its maker.
!inside && /^(#ifndef|#define|#endif|\/\/)/ { next }
!inside && /^#include "[A-Za-z0-9_]+_whole\.h"$/ { sub(/_whole\.h/, part == "types" ? "_types.h" : "_generated.h") }
!inside && /^#include/ { print; next }
!inside && /^$/ { next }

!inside {
    inside = 1
    braces = 0
    here = classify($0)
    shown = here == "both" || here == part
}

# What describes a struct of fixed size is among the tables.
inside && here == "types" && /^  static .*MiniReflectTypeTable\(\) \{$/ { described = 1 }
described {
    if (/^  \}$/) described = 0
    next
}

{
    if (shown) print
    if (/\{/) braces = 1
    if (here == "both" || /^\}/ || /^FLATBUFFERS_DEFINE_BITMASK_OPERATORS\(/ || (!braces && /;$/)) {
        inside = 0
        if (shown) print ""
        if (shown && here == "types") kinds++
    }
}

END {
    if (part == "types" && !kinds) {
        print "split_types.awk: no types in the header of " name ".fbs" >"/dev/stderr"
        exit 1
    }
}

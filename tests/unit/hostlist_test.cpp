// SPDX-License-Identifier: Apache-2.0
#include "base/hostlist.h"

#include <boost/test/unit_test.hpp>
#include <random>

using namespace dlrover;

namespace {

std::string join(const std::vector<std::string> &names) {
    std::string text;
    for (const auto &name : names) text += (text.empty() ? "" : " ") + name;
    return text;
}

std::string expand(std::string_view text) {
    auto names = expand_hostlist(text);
    return names.ok() ? join(*names) : "refused: " + std::string(code_name(names.status().code()));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(hostlist)

BOOST_AUTO_TEST_CASE(expands_as_slurm_writes) {
    BOOST_TEST(expand("n1") == "n1");
    BOOST_TEST(expand("n[1-3,7]") == "n1 n2 n3 n7");
    BOOST_TEST(expand("n[08-11]") == "n08 n09 n10 n11");
    BOOST_TEST(expand("n[9-11]") == "n9 n10 n11");
    BOOST_TEST(expand("login,n[1-2],gpu-a.site") == "login n1 n2 gpu-a.site");
    BOOST_TEST(expand("r[1-2]n[01-02]") == "r1n01 r1n02 r2n01 r2n02");
    BOOST_TEST(expand("n[1-2]-ib") == "n1-ib n2-ib");
    BOOST_TEST(expand("[1-3]") == "1 2 3");
    BOOST_TEST(expand("") == "");
}

BOOST_AUTO_TEST_CASE(refuses_what_is_no_list) {
    for (const char *text :
         {"n[", "n]", "n[]", "n[1-]", "n[-2]", "n[3-1]", "n[1,]", "n[a-b]", "n[1-2", "a,,b", ",", "a,",
          "n [1]", "n[1[2]]", "n[1-2-3]", "a\nb", "n[99999999999999999999]"})
        BOOST_TEST(expand(text) == "refused: invalid argument", text);
    BOOST_TEST(expand(std::string(256, 'a')) == "refused: invalid argument");
    BOOST_TEST(expand(std::string(250, 'a') + "[1-999999]") == "refused: invalid argument");
    BOOST_TEST(expand("a[1]b[1]c[1]d[1]e[1]f[1]g[1]h[1]i[1]") == "refused: invalid argument");
}

BOOST_AUTO_TEST_CASE(is_bounded) {
    BOOST_TEST(expand("n[0-999999999999]") == "refused: out of resources");
    BOOST_TEST(expand("n[0-999][0-999][0-999]") == "refused: out of resources");
    BOOST_TEST(expand("n[1-65536]").size() > 65536u);
    BOOST_TEST(expand("n[1-65536],x") == "refused: out of resources");
    BOOST_TEST((expand_hostlist("n[1-4]", 3).status().code() == Code::resource_exhausted));
}

BOOST_AUTO_TEST_CASE(compresses) {
    using Names = std::vector<std::string>;
    auto compress = [](const Names &names) { return compress_hostlist(names); };
    BOOST_TEST(compress(Names{}) == "");
    BOOST_TEST(compress(Names{"n1"}) == "n1");
    BOOST_TEST(compress(Names{"n1", "n2", "n3", "n7", "login"}) == "n[1-3,7],login");
    BOOST_TEST(compress(Names{"n09", "n10", "n11"}) == "n[09-11]");
    BOOST_TEST(compress(Names{"n9", "n10"}) == "n[9-10]");
    BOOST_TEST(compress(Names{"n2", "n1"}) == "n[2,1]");
    BOOST_TEST(compress(Names{"a1", "b1", "a2"}) == "a1,b1,a2");
}

BOOST_AUTO_TEST_CASE(expand_undoes_compress) {
    std::mt19937 random(7);
    for (int round = 0; round < 300; ++round) {
        std::vector<std::string> names;
        for (unsigned i = random() % 20; i > 0; --i) {
            std::string digits = std::to_string(random() % 30);
            if (random() % 2) digits.insert(0, std::string(3 - std::min<std::size_t>(digits.size(), 3), '0'));
            names.push_back((random() % 3 ? "n" : "rack1-") + (random() % 5 ? digits : "x"));
        }
        auto again = expand_hostlist(compress_hostlist(names));
        BOOST_TEST_REQUIRE(again.ok());
        BOOST_TEST(join(*again) == join(names));
    }
}

BOOST_AUTO_TEST_CASE(random_text_never_harms) {
    std::mt19937 random(11);
    const std::string letters = "n1290-,[]a.\\0 ";
    for (int round = 0; round < 20000; ++round) {
        std::string text;
        for (unsigned i = random() % 24; i > 0; --i) text += letters[random() % letters.size()];
        auto names = expand_hostlist(text, 100);
        if (names.ok()) BOOST_TEST(names->size() <= 100u);
    }
}

BOOST_AUTO_TEST_SUITE_END()

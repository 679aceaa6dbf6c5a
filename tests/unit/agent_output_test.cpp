// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <boost/test/unit_test.hpp>

#include "agent/files.h"
#include "agent/sink.h"
#include "agent/stream.h"

using namespace dlrover;
using namespace dlrover::agent;
using namespace std::chrono_literals;

namespace {

struct Pipe {
    Pipe() {
        int ends[2];
        BOOST_REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
        reader.reset(ends[0]);
        writer.reset(ends[1]);
        ::fcntl(reader.get(), F_SETFL, O_NONBLOCK);
    }
    std::string read_all() const {
        std::string text;
        char buffer[65536];
        for (ssize_t n; (n = ::read(reader.get(), buffer, sizeof buffer)) > 0;)
            text.append(buffer, static_cast<std::size_t>(n));
        return text;
    }
    UniqueFd reader, writer;
};

struct Fixture {
    Fixture() : loop(Loop::create().value()), dir(*make_private_dir("dlrover-unit")), spill(dir, "spill") {}
    ~Fixture() { remove_tree(dir); }
    /// Runs the loop until `done` or 5 s.
    template <typename Done>
    bool run_until(Done done) {
        auto end = Loop::now() + 5s;
        bool reached = false;
        std::function<void()> look = [&] {
            reached = done();
            if (reached || Loop::now() > end) return loop->stop();
            loop->after(1ms, look);
        };
        loop->after(0ms, look);
        loop->run();
        return reached;
    }
    std::string spilled() const { return read_tail(spill.path(), 1 << 24); }
    std::unique_ptr<Loop> loop;
    std::string dir;
    SpillFile spill;
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(agent_output, Fixture)

BOOST_AUTO_TEST_CASE(a_reader_that_keeps_up_gets_everything_at_once) {
    Pipe pipe;
    Sink sink(*loop, pipe.writer.get(), "test");
    sink.write("one\n", &spill);
    sink.write("two\n", &spill);
    BOOST_TEST(pipe.read_all() == "one\ntwo\n");
    BOOST_TEST(spill.path().empty());
}

BOOST_AUTO_TEST_CASE(what_does_not_fit_is_spilled_and_said_and_the_newest_follows) {
    Pipe pipe;
    Sink sink(*loop, pipe.writer.get(), "test", 100000);
    std::string line(999, 'x');
    line += '\n';
    for (int i = 0; i < 400; ++i)
        sink.write(line, &spill);  // 65536 in the pipe, 100000 kept, the rest spilled
    BOOST_TEST(sink.buffered_bytes() <= 100000u);
    std::size_t in_file = spilled().size();
    BOOST_TEST(in_file > 200000u);
    std::string seen;
    BOOST_TEST(run_until([&] { return (seen += pipe.read_all()).find("nobody read") != std::string::npos; }));
    sink.write("newest\n", &spill);
    seen += pipe.read_all();
    BOOST_TEST(seen.ends_with("test: nobody read this stream for a while; " + std::to_string(in_file / 1024) +
                              " KiB of output are in " + spill.path() + "\nnewest\n"));
    BOOST_TEST(spilled().size() == in_file);
    std::size_t said = seen.find("test: nobody");
    BOOST_TEST(said + in_file == 400 * line.size());
}

BOOST_AUTO_TEST_CASE(a_broken_stream_goes_to_the_file_with_what_was_kept) {
    Pipe pipe;
    Sink sink(*loop, pipe.writer.get(), "test");
    std::string block(200000, 'y');
    sink.write(block, &spill);
    std::string seen = pipe.read_all();
    pipe.reader.reset();
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    ::sigaction(SIGPIPE, &ignore, nullptr);
    sink.write("more", &spill);
    BOOST_TEST(run_until([&] { return sink.broken(); }));
    sink.write("last", &spill);
    BOOST_TEST(spilled().ends_with("morelast"));
    BOOST_TEST(seen.size() + spilled().size() == block.size() + 8);
}

BOOST_AUTO_TEST_CASE(the_end_waits_only_so_long) {
    Pipe pipe;
    Sink sink(*loop, pipe.writer.get(), "test");
    sink.write(std::string(300000, 'z'), &spill);
    auto begin = Loop::now();
    sink.flush(50ms);
    BOOST_TEST((Loop::now() - begin < 1s));
    BOOST_TEST(spilled().size() + pipe.read_all().size() == 300000u);
}

BOOST_AUTO_TEST_CASE(other_users_of_the_same_open_file_keep_their_flags) {
    Pipe pipe;
    {
        Sink sink(*loop, pipe.writer.get(), "test");
        sink.write(std::string(100000, 'a'), &spill);
    }
    BOOST_TEST((::fcntl(pipe.writer.get(), F_GETFL) & O_NONBLOCK) == 0);
}

BOOST_AUTO_TEST_CASE(sockets_and_files) {
    int ends[2];
    BOOST_REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    UniqueFd ours(ends[0]), theirs(ends[1]);
    Sink to_socket(*loop, ours.get(), "test");
    to_socket.write(std::string(4 << 20, 's'), &spill);  // more than a socket takes: must not wait
    BOOST_TEST(to_socket.buffered_bytes() > 0u);
    auto file = create_file(dir + "/plain");
    BOOST_REQUIRE(file.ok());
    Sink to_file(*loop, file->get(), "test");
    to_file.write("text", &spill);
    BOOST_TEST(read_tail(dir + "/plain", 100) == "text");
}

BOOST_AUTO_TEST_CASE(spill_files_are_bounded) {
    SpillFile small(dir, "small", 10);
    small.append("0123456789");
    small.append("abc");
    BOOST_TEST(small.written_bytes() == 10u);
    BOOST_TEST(small.dropped_bytes() == 3u);
}

BOOST_AUTO_TEST_CASE(spill_files_follow_no_link_and_fall_back) {
    std::string target = dir + "/target";
    BOOST_REQUIRE(create_file(target).ok());
    std::string name = "dlrover-unit-" + std::to_string(::getpid());
    BOOST_REQUIRE(::symlink(target.c_str(), (dir + "/" + name).c_str()) == 0);
    SpillFile linked(dir, name);
    linked.append("data");
    BOOST_TEST(read_tail(target, 10).empty());
    BOOST_TEST(linked.path() == "/tmp/" + name);
    ::unlink(linked.path().c_str());
}

BOOST_AUTO_TEST_CASE(lines_of_several_workers_stay_whole) {
    Pipe console, a, b;
    Sink sink(*loop, console.writer.get(), "test");
    StreamPlan plan_a{&sink, &spill, true, {}, {}}, plan_b{&sink, &spill, true, "[b]:", {}};
    Stream stream_a(*loop, std::move(a.reader), std::move(plan_a));
    Stream stream_b(*loop, std::move(b.reader), std::move(plan_b));
    auto write = [](Pipe &p, std::string_view text) {
        BOOST_REQUIRE(::write(p.writer.get(), text.data(), text.size()) > 0);
    };
    write(a, "first ");
    stream_a.drain();
    write(b, "x\ny\nz");
    stream_b.drain();
    write(a, "half\n");
    stream_a.drain();
    BOOST_TEST(console.read_all() == "[b]:x\n[b]:y\nfirst half\n");
    stream_b.finish();  // an unfinished line is not lost
    BOOST_TEST(console.read_all() == "[b]:z\n");
    BOOST_TEST(stream_b.tail() == "x\ny\nz");
}

BOOST_AUTO_TEST_CASE(a_prompt_without_line_end_appears_after_a_while) {
    Pipe console, a;
    Sink sink(*loop, console.writer.get(), "test");
    Stream stream(*loop, std::move(a.reader), StreamPlan{&sink, &spill, true, {}, {}});
    BOOST_REQUIRE(::write(a.writer.get(), "50%", 3) == 3);
    std::string seen;
    BOOST_TEST(run_until([&] { return !(seen += console.read_all()).empty(); }));
    BOOST_TEST(seen == "50%");
}

BOOST_AUTO_TEST_CASE(the_tail_is_the_newest) {
    Pipe a;
    Stream stream(*loop, std::move(a.reader), StreamPlan{});
    std::string all;
    for (int i = 0; i < 40; ++i) {
        std::string part(10000, static_cast<char>('a' + i % 26));
        all += part;
        BOOST_REQUIRE(::write(a.writer.get(), part.data(), part.size()) == 10000);
        stream.drain();
    }
    BOOST_TEST(stream.tail() == std::string_view(all).substr(all.size() - Stream::tail_bytes));
}

BOOST_AUTO_TEST_SUITE_END()

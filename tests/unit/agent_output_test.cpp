// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
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

struct FileSizeLimit {
    explicit FileSizeLimit(rlim_t bytes) {
        ::getrlimit(RLIMIT_FSIZE, &before);
        struct rlimit low {
            bytes, before.rlim_max
        };
        ::setrlimit(RLIMIT_FSIZE, &low);
    }
    ~FileSizeLimit() {
        ::setrlimit(RLIMIT_FSIZE, &before);
        ::signal(SIGXFSZ, signal_before);
    }
    struct rlimit before {};
    sighandler_t signal_before = ::signal(SIGXFSZ, SIG_IGN);
};

struct Fixture {
    Fixture()
        : loop(Loop::create().value()), dir(*make_private_dir("dlrover-unit")), spill(*loop, dir, "spill") {}
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
    static void settle() { BOOST_REQUIRE(Aside::wait_for_all(Loop::now() + 10s)); }
    std::string spilled() {
        // What came while a write was under way is given to the thread by the loop.
        BOOST_REQUIRE(run_until([&] { return spill.is_idle(); }));
        return read_tail(spill.path(), 1 << 24);
    }
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
    BOOST_TEST(sink.flush(50ms) == "");
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
    BOOST_TEST(to_file.flush(5s) == "");
    BOOST_TEST(read_tail(dir + "/plain", 100) == "text");
}

BOOST_AUTO_TEST_CASE(spill_files_are_bounded) {
    SpillFile small(*loop, dir, "small", 10);
    small.append("01234567");
    small.append("89abc");
    BOOST_TEST(run_until([&] { return small.is_idle(); }));
    BOOST_TEST(read_tail(small.path(), 100) == "0123456789");
    BOOST_TEST(small.written_bytes() == 10u);
    BOOST_TEST(small.dropped_bytes() == 3u);
}

BOOST_AUTO_TEST_CASE(spill_files_follow_no_link_and_fall_back) {
    std::string target = dir + "/target";
    BOOST_REQUIRE(create_file(target).ok());
    std::string name = "dlrover-unit-" + std::to_string(::getpid());
    BOOST_REQUIRE(::symlink(target.c_str(), (dir + "/" + name).c_str()) == 0);
    SpillFile linked(*loop, dir, name);
    linked.append("data");
    BOOST_TEST(run_until([&] { return linked.is_idle(); }));
    BOOST_TEST(read_tail(target, 10).empty());
    BOOST_TEST(linked.path() == "/tmp/" + name);
    ::unlink(linked.path().c_str());
}

BOOST_AUTO_TEST_CASE(lines_of_several_workers_stay_whole) {
    Pipe console, a, b;
    Sink sink(*loop, console.writer.get(), "test");
    StreamPlan plan_a{&sink, &spill, true, {}, {}, {}, {}}, plan_b{&sink, &spill, true, "[b]:", {}, {}, {}};
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
    Stream stream(*loop, std::move(a.reader), StreamPlan{&sink, &spill, true, {}, {}, {}, {}});
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

BOOST_AUTO_TEST_CASE(the_end_waits_for_all_that_a_file_was_given_without_a_loop) {
    Pipe slow;
    FileWriter writer(*loop, UniqueFd(::dup(slow.writer.get())));
    std::string all(200000, 'a'), seen;  // more than the pipe takes: this call is under way
    writer.write(all);
    ::usleep(20000);
    writer.write("what came meanwhile");
    all += "what came meanwhile";
    auto end = Loop::now() + 5s;
    while (!Aside::wait_for_all(Loop::now() + 1ms) && Loop::now() < end) seen += slow.read_all();
    seen += slow.read_all();
    BOOST_TEST((seen == all));
    BOOST_TEST(writer.is_idle());
}

/// A pipe that nobody reads stands for a file whose file system hangs: write() waits for as long.
BOOST_AUTO_TEST_CASE(a_file_that_hangs_holds_its_writer_up_and_not_the_loop) {
    Pipe worker, hung;
    std::string line(999, 'x');
    line += '\n';
    std::string seen;
    {
        StreamPlan plan;
        plan.copy = std::make_unique<FileWriter>(*loop, UniqueFd(::dup(hung.writer.get())));
        Stream stream(*loop, std::move(worker.reader), std::move(plan));
        ::fcntl(worker.writer.get(), F_SETFL, O_NONBLOCK);
        std::size_t sent = 0, before = 1;
        auto fill = [&] {
            for (ssize_t n; (n = ::write(worker.writer.get(), line.data(), line.size())) > 0;)
                sent += static_cast<std::size_t>(n);
        };
        // Until nothing more is taken: the loop has turned all the while.
        for (int quiet = 0; quiet < 10; quiet = before == sent ? quiet + 1 : 0) {
            before = sent;
            fill();
            int turns = 0;
            BOOST_REQUIRE(run_until([&] { return ++turns == 20; }));
        }
        // Two pipes, what waits for the file, and one read beyond: the worker waits as it would for the file.
        BOOST_TEST(sent >= FileWriter::default_limit_bytes);
        BOOST_TEST(sent <= FileWriter::default_limit_bytes + (std::size_t{3} << 20));
        BOOST_TEST(!Aside::wait_for_all(Loop::now()));
        BOOST_TEST(run_until([&] {
            seen += hung.read_all();
            return seen.size() >= sent - (std::size_t{1} << 20);
        }));
        fill();
        stream.finish();
        worker.writer.reset();
        before = sent;
        BOOST_TEST(run_until([&] { return (seen += hung.read_all()).size() == before; }));
    }
    settle();
    for (std::size_t at = 0; at + 1000 <= seen.size(); at += 1000)
        BOOST_REQUIRE(seen.compare(at, 1000, line) == 0);
}

BOOST_AUTO_TEST_CASE(what_a_file_has_taken_is_written_though_its_writer_ends) {
    Pipe hung;
    std::string all;
    {
        FileWriter writer(*loop, UniqueFd(::dup(hung.writer.get())));
        for (int i = 0; i < 300; ++i) {
            std::string part(1000, static_cast<char>('a' + i % 26));
            all += part;
            writer.write(part);
        }
    }
    BOOST_TEST(!Aside::wait_for_all(Loop::now() + 20ms));  // the end of the process is to know of it
    std::string seen;
    BOOST_TEST(run_until([&] { return (seen += hung.read_all()).size() >= all.size(); }));
    BOOST_TEST((seen == all));
    settle();
}

BOOST_AUTO_TEST_CASE(a_full_disk_sends_output_to_the_file_of_its_rank) {
    UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
    BOOST_REQUIRE(full);
    FileWriter writer(*loop, std::move(full));
    writer.write("lost");
    BOOST_TEST(run_until([&] { return writer.is_idle(); }));
    BOOST_TEST(writer.dropped_bytes() == 4u);
    // A regular file that takes 10 bytes: the rest is not lost.
    auto file = create_file(dir + "/small");
    BOOST_REQUIRE(file.ok());
    Sink sink(*loop, file->get(), "test");
    {
        FileSizeLimit limit(10);
        sink.write("0123456789abcdef", &spill);
        sink.write("ghij", &spill);
        settle();
    }
    sink.write("klm", &spill);
    std::string elsewhere = sink.flush(5s);
    std::string kept = read_tail(dir + "/small", 100), rest = spilled();
    BOOST_TEST(kept + rest == "0123456789abcdefghijklm");
    BOOST_TEST(!rest.empty());
    BOOST_TEST(elsewhere == std::to_string(rest.size()) + " B of output are in " + spill.path());
}

BOOST_AUTO_TEST_SUITE_END()

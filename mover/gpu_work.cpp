// SPDX-License-Identifier: Apache-2.0
#include "mover/gpu_work.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <random>
#include <set>
#include <system_error>
#include <thread>
#include <vector>

namespace dlrover::mover {
namespace {

using Clock = std::chrono::steady_clock;
using Code = GpuDriver::Code;

constexpr unsigned block = 256, rounds = 64;
/// The work is some 100 ms: who is at it for so long without the others in its way has come to a halt.
constexpr std::chrono::milliseconds longest_work{3000};

/// c = a b, square matrices by rows; a thread makes one entry. PTX is what every driver translates for its
/// GPU; all of this is older than version and target.
constexpr const char *multiply_ptx = R"(
.version 6.0
.target sm_50
.address_size 64

.visible .entry multiply(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 side)
{
    .reg .pred %p<2>;
    .reg .f32 %f<4>;
    .reg .b32 %r<6>;
    .reg .b64 %d<7>;
    ld.param.u64 %d1, [a];
    ld.param.u64 %d2, [b];
    ld.param.u64 %d3, [c];
    ld.param.u32 %r1, [side];
    cvta.to.global.u64 %d1, %d1;
    cvta.to.global.u64 %d2, %d2;
    cvta.to.global.u64 %d3, %d3;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r2, %r2, %r3, %r4;
    mov.u32 %r3, %ctaid.y;
    setp.ge.u32 %p1, %r2, %r1;
    @%p1 bra DONE;
    mul.wide.u32 %d4, %r1, 4;
    mul.wide.u32 %d5, %r3, %r1;
    shl.b64 %d5, %d5, 2;
    add.u64 %d1, %d1, %d5;
    mul.wide.u32 %d6, %r2, 4;
    add.u64 %d2, %d2, %d6;
    add.u64 %d3, %d3, %d5;
    add.u64 %d3, %d3, %d6;
    mov.f32 %f1, 0f00000000;
    mov.u32 %r5, 0;
NEXT:
    ld.global.f32 %f2, [%d1];
    ld.global.f32 %f3, [%d2];
    fma.rn.f32 %f1, %f2, %f3, %f1;
    add.u64 %d1, %d1, 4;
    add.u64 %d2, %d2, %d4;
    add.u32 %r5, %r5, 1;
    setp.lt.u32 %p1, %r5, %r1;
    @%p1 bra NEXT;
    st.global.f32 [%d3], %f1;
DONE:
    ret;
}
)";

/// What a device says of itself: memory, NVLink or containment errors that can not be corrected.
bool is_broken(Code code) {
    return code == 214 || code == 220 || code == 226;
}

/// Whose processes share a device by MPS get each other's errors.
bool uses_mps() {
    return std::getenv("CUDA_MPS_PIPE_DIRECTORY") || ::access("/tmp/nvidia-mps/control", F_OK) == 0;
}

/// What can come of a broken device only, once it is at work on a program that is right: launches that fail,
/// addresses and instructions that were never given to it, "unknown".
bool is_broken_at_work(Code code) {
    return is_broken(code) || (((code >= 700 && code <= 799) || code == 999) && !uses_mps());
}

using Matrix = std::vector<float>;

/// Whole numbers so small that every sum of products is exact, in any order.
Matrix make_matrix(std::size_t side, unsigned seed) {
    std::minstd_rand random(seed);
    Matrix m(side * side);
    for (float &entry : m) entry = static_cast<float>(static_cast<int>(random() % 17) - 8);
    return m;
}

std::vector<std::int64_t> times(const Matrix &m, const std::vector<std::int64_t> &vector) {
    const std::size_t side = vector.size();
    std::vector<std::int64_t> out(side);
    for (std::size_t i = 0; i < side; ++i)
        for (std::size_t j = 0; j < side; ++j)
            out[i] += static_cast<std::int64_t>(m[i * side + j]) * vector[j];
    return out;
}

/// Freivalds' check: c = a b is wrong in a row, then c r = a (b r) is, for most r.
bool is_product(std::size_t side, const Matrix &a, const Matrix &b, const Matrix &c) {
    auto most = static_cast<float>(64 * side);
    auto may_be = [&](float entry) { return entry >= -most && entry <= most && entry == std::trunc(entry); };
    if (!std::ranges::all_of(c, may_be)) return false;
    std::vector<std::int64_t> r(side);
    std::minstd_rand random(7);
    for (auto &entry : r) entry = static_cast<std::int64_t>(1 + random() % 1020);
    return times(c, r) == times(a, times(b, r));
}

/// What one device has to say.
struct Report {
    GpuVerdict::Kind kind = GpuVerdict::Kind::sound;
    std::chrono::microseconds work{0};
    std::string text;
};

/// Shared by the threads, which may outlast the one that waits for them.
struct Work {
    struct Entry {
        std::string name;
        bool ready = false;  ///< it has a program, and memory
        std::optional<Report> report;
    };
    GpuDriver driver;
    unsigned side;
    std::mutex mutex;
    std::condition_variable changed;
    // Guarded by mutex:
    bool begun = false;  ///< devices is complete
    GpuVerdict start;    ///< where it can not begin: not `sound`
    std::vector<Entry> devices;

    std::optional<Clock::time_point> work_began;  ///< all that can work are ready: nobody holds up another

    void look_whether_all_are_ready() {
        if (work_began || !std::ranges::all_of(devices, [](const Entry &e) { return e.ready || e.report; }))
            return;
        work_began = Clock::now();
        changed.notify_all();
    }
    bool is_over() const {
        return begun && std::ranges::all_of(devices, [](const Entry &e) { return e.report.has_value(); });
    }
};

/// One device, on a thread of its own.
class Device {
  public:
    Device(Work &work, std::size_t index, int handle)
        : driver_(work.driver), work_(work), index_(index), handle_(handle), side_(work.side) {}

    Report work() {
        Matrix a = make_matrix(side_, 1), b = make_matrix(side_, 2);
        if (!get_ready(a, b)) return report_;
        {
            std::unique_lock lock(work_.mutex);
            work_.devices[index_].ready = true;
            work_.look_whether_all_are_ready();
            work_.changed.wait(lock, [&] { return work_.work_began.has_value(); });
        }
        at_work_ = true;
        if (!makes_product(a, b)) return report_;  // the first time it is translated, and wakes up
        auto begin = Clock::now();
        for (unsigned i = 0; i < rounds; ++i)
            if (!launch()) return report_;
        if (!does(driver_.cuCtxSynchronize(), did_not_work)) return report_;
        report_.work = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin);
        (void)makes_product(a, b);
        return report_;
    }

  private:
    static constexpr const char *did_not_work = "it did not do its work";

    bool get_ready(const Matrix &a, const Matrix &b) {
        GpuDriver::Handle context = nullptr, module = nullptr;
        bool ready = does(driver_.cuDevicePrimaryCtxRetain(&context, handle_), "it can not be used") &&
                     does(driver_.cuCtxSetCurrent(context), "its context can not be used") &&
                     does(driver_.cuModuleLoadData(&module, multiply_ptx), "no program can be loaded") &&
                     does(driver_.cuModuleGetFunction(&function_, module, "multiply"), "no program is there");
        for (GpuDriver::Pointer *matrix : {&a_, &b_, &c_})
            ready = ready && does(driver_.cuMemAlloc(matrix, matrix_bytes()), "no memory can be had");
        return ready && put(a_, a) && put(b_, b);
    }

    bool put(GpuDriver::Pointer to, const Matrix &from) {
        return does(driver_.cuMemcpyHtoD(to, from.data(), matrix_bytes()), "its memory can not be written");
    }

    bool launch() {
        void *arguments[] = {&a_, &b_, &c_, &side_};
        return does(driver_.cuLaunchKernel(function_, side_ / block, side_, 1, block, 1, 1, 0, nullptr,
                                           arguments, nullptr),
                    "no work can be given to it");
    }

    /// Into memory that holds no numbers, so that what was there before is not taken for it.
    bool makes_product(const Matrix &a, const Matrix &b) {
        Matrix c(a.size(), std::numeric_limits<float>::quiet_NaN());
        if (!put(c_, c) || !launch() || !does(driver_.cuCtxSynchronize(), did_not_work) ||
            !does(driver_.cuMemcpyDtoH(c.data(), c_, matrix_bytes()), "its memory can not be read"))
            return false;
        if (is_product(side_, a, b, c)) return true;
        report_ = {GpuVerdict::Kind::failed, {}, "a product of matrices is wrong: it miscalculates"};
        return false;
    }

    std::size_t matrix_bytes() const { return std::size_t{side_} * side_ * sizeof(float); }

    bool does(Code code, const char *what) {
        if (code == 0) return true;
        bool broken = at_work_ ? is_broken_at_work(code) : is_broken(code);
        report_ = {broken ? GpuVerdict::Kind::failed : GpuVerdict::Kind::untried,
                   {},
                   std::string(what) + ": " + driver_.name_of(code)};
        return false;
    }

    const GpuDriver &driver_;
    Work &work_;
    std::size_t index_;
    int handle_;
    unsigned side_;
    bool at_work_ = false;
    GpuDriver::Handle function_ = nullptr;
    GpuDriver::Pointer a_ = 0, b_ = 0, c_ = 0;
    Report report_;
};

std::string name_of(const GpuDriver &driver, int handle) {
    char name[128] = "a GPU", bus[32] = "";
    (void)driver.cuDeviceGetName(name, sizeof name - 1, handle);
    (void)driver.cuDeviceGetPCIBusId(bus, sizeof bus - 1, handle);
    return std::string("GPU ") + bus + " (" + name + ")";
}

GpuVerdict verdict_of_start(const GpuDriver &driver, Code code, int count, unsigned promised) {
    using Kind = GpuVerdict::Kind;
    if (code != 0)
        return {is_broken(code) ? Kind::failed : Kind::untried,
                0,
                {},
                "the GPUs' driver does not begin: " + driver.name_of(code)};
    if (count == 0) return {Kind::untried, 0, {}, "CUDA finds none"};
    auto found = static_cast<unsigned>(count);
    if (found >= promised) return {Kind::sound, found, {}, {}};
    return {
        Kind::failed,
        found,
        {},
        "CUDA finds " + std::to_string(found) + " of the " + std::to_string(promised) + " GPUs of this step"};
}

/// MIG devices, of which CUDA shows a process one, however many it was given.
bool has_slices(const GpuDriver &driver, int count) {
    bool found = false;
    for (int i = 0, handle = 0; i < count; ++i)
        found = found || (driver.cuDeviceGet(&handle, i) == 0 &&
                          name_of(driver, handle).find("MIG") != std::string::npos);
    return found;
}

void work_on_one(const std::shared_ptr<Work> &work, std::size_t index, int handle) {
    Report report;
    try {
        report = Device(*work, index, handle).work();
    } catch (const std::bad_alloc &) {
        report = {GpuVerdict::Kind::untried, {}, "no memory can be had here"};
    }
    std::lock_guard lock(work->mutex);
    work->devices[index].report = std::move(report);
    work->look_whether_all_are_ready();
    work->changed.notify_all();
}

/// On a thread, since also the driver's beginning may hang.
void begin(const std::shared_ptr<Work> &work, unsigned promised) {
    const GpuDriver &driver = work->driver;
    int count = 0;
    Code code = driver.cuInit(0);
    if (code == 0) code = driver.cuDeviceGetCount(&count);
    GpuVerdict start = verdict_of_start(driver, code, count, promised);
    std::vector<int> handles;
    std::vector<Work::Entry> devices;
    for (int i = 0; start.kind == GpuVerdict::Kind::sound && i < count; ++i) {
        int handle = 0;
        if (code = driver.cuDeviceGet(&handle, i); code != 0) {
            start = {
                GpuVerdict::Kind::untried, 0, {}, "GPU " + std::to_string(i) + ": " + driver.name_of(code)};
            handles.clear();
            devices.clear();
            break;
        }
        handles.push_back(handle);
        devices.push_back({name_of(driver, handle), false, {}});
    }
    if (start.kind == GpuVerdict::Kind::failed && has_slices(driver, count))
        start.kind = GpuVerdict::Kind::untried;
    {
        std::lock_guard lock(work->mutex);
        work->start = start;
        work->devices = std::move(devices);
        work->begun = true;
    }
    work->changed.notify_all();
    for (std::size_t i = 0; i < handles.size(); ++i) try {
            std::thread(work_on_one, work, i, handles[i]).detach();
        } catch (const std::system_error &) {
            work_on_one(work, i, handles[i]);
        }
}

/// The first that failed counts, then the first that could not work. Under the mutex.
GpuVerdict sum_up(const Work &work) {
    using Kind = GpuVerdict::Kind;
    GpuVerdict sum = work.start;
    if (!work.begun) return {Kind::untried, 0, {}, "their driver has not begun in time"};
    bool long_at_work = work.work_began && Clock::now() - *work.work_began >= longest_work;
    auto say = [&](const std::string &name, const std::string &what) {
        if (sum.text.empty()) sum.text = name + ": " + what;
    };
    for (const auto &[name, ready, report] : work.devices) {
        Kind kind = report ? report->kind : long_at_work ? Kind::failed : Kind::untried;
        if (kind == Kind::failed)
            return {kind,
                    sum.devices,
                    {},
                    name + ": " + (report ? report->text : "it does not come to an end of its work")};
        if (report) sum.work = std::max(sum.work, report->work);
        if (kind != Kind::untried) continue;
        sum.kind = kind;
        if (report || !ready) say(name, report ? report->text : "it is not ready in time");
    }
    if (sum.kind == Kind::untried) say("all", "there was too little time");
    return sum;
}

}  // namespace

unsigned promised_gpus(const char *visible, const char *given) {
    auto numbers = [](const char *text) -> std::set<unsigned> {
        std::set<unsigned> found;
        std::string_view rest = text ? text : "";
        for (bool more = !rest.empty(); more;) {
            std::string_view word = rest.substr(0, rest.find(','));
            more = word.size() < rest.size();
            rest.remove_prefix(std::min(word.size() + 1, rest.size()));
            unsigned number = 0;
            auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
            if (error != std::errc() || end != word.data() + word.size() || !found.insert(number).second)
                return {};
        }
        return found;
    };
    auto wanted = numbers(visible), of_node = numbers(given);
    bool in_cgroup =
        !wanted.empty() && *wanted.rbegin() == wanted.size() - 1;  // 0 to the last: Slurm counts anew
    bool of_slurm = wanted == of_node || (in_cgroup && wanted.size() == of_node.size());
    return of_slurm ? static_cast<unsigned>(wanted.size()) : 0;
}

GpuVerdict work_on_gpus(const Result<GpuDriver> &driver, unsigned promised, Clock::time_point deadline,
                        unsigned side) {
    if (!driver) return {GpuVerdict::Kind::untried, 0, {}, driver.status().message()};
    auto work = std::make_shared<Work>();
    work->driver = *driver;
    work->side = side;
    try {
        std::thread(begin, work, promised).detach();
    } catch (const std::system_error &) {
        return {GpuVerdict::Kind::untried, 0, {}, "no thread can be had"};
    }
    std::unique_lock lock(work->mutex);
    work->changed.wait_until(lock, deadline, [&] { return work->is_over(); });
    return sum_up(*work);
}

std::string describe(const GpuVerdict &verdict) {
    if (verdict.kind == GpuVerdict::Kind::untried)
        return verdict.text.empty() ? std::string() : "GPUs not tried: " + verdict.text;
    return "sound GPUs: " + std::to_string(verdict.devices);
}

std::string to_line(const GpuVerdict &verdict) {
    const char *kind = verdict.kind == GpuVerdict::Kind::sound     ? "sound"
                       : verdict.kind == GpuVerdict::Kind::untried ? "untried"
                                                                   : "failed";
    std::string text = verdict.text;
    std::ranges::replace(text, '\n', ' ');
    return std::string(kind) + " " + std::to_string(verdict.devices) + " " +
           std::to_string(verdict.work.count()) + " " + text + "\n";
}

Result<GpuVerdict> parse_verdict(std::string_view line) {
    GpuVerdict verdict;
    auto word = [&line] {
        std::string_view found = line.substr(0, line.find(' '));
        line.remove_prefix(std::min(found.size() + 1, line.size()));
        return found;
    };
    auto number = [](std::string_view text, auto &out) {
        auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
        return error == std::errc() && end == text.data() + text.size();
    };
    std::string_view kind = word();
    std::int64_t microseconds = 0;
    bool whole = line.ends_with('\n') && number(word(), verdict.devices) && number(word(), microseconds);
    if (kind == "sound")
        verdict.kind = GpuVerdict::Kind::sound;
    else if (kind == "failed")
        verdict.kind = GpuVerdict::Kind::failed;
    else
        whole = whole && kind == "untried";
    if (!whole || microseconds < 0) return Status(dlrover::Code::corrupt, "no verdict on the GPUs");
    verdict.work = std::chrono::microseconds(microseconds);
    verdict.text = line.substr(0, line.size() - 1);
    return verdict;
}

}  // namespace dlrover::mover

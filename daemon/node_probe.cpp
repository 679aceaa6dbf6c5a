// SPDX-License-Identifier: Apache-2.0
#include "daemon/node_probe.h"

#include <unistd.h>

#include <chrono>
#include <fstream>

#include "daemon/interfaces.h"
#include "transport/sockets.h"

namespace dlrover::daemon {
namespace {

using local::FactState;

/// The word in brackets, of a file that lists them all; empty where there is none.
std::string selected_word(const std::string &file) {
    std::ifstream in(file);
    for (std::string word; in >> word;)
        if (word.size() > 2 && word.front() == '[' && word.back() == ']')
            return word.substr(1, word.size() - 2);
    return {};
}

}  // namespace

void probe_huge_pages(const std::string &folder, Facts &facts) {
    const char *name = "huge pages", *slower = "so saves are slower than they could be";
    std::string file = folder + "/shmem_enabled", word = selected_word(file);
    // Newer kernels have a word for each size, too.
    std::string of_size = folder + "/hugepages-2048kB/shmem_enabled", own = selected_word(of_size);
    if (!own.empty() && own != "inherit" && word != "deny" && word != "force") file = of_size, word = own;
    if (word.empty())
        return add_fact(facts, name, FactState::Limited,
                        std::string("this kernel gives shared memory none, ") + slower);
    if (word == "never" || word == "deny")
        return add_fact(
            facts, name, FactState::Limited,
            "memory for checkpoints gets none, " + std::string(slower) + ": " + file + " says " + word,
            "echo advise > " + file + ", at each boot: docs/checkpoints.md, \"Huge pages\"");
    add_fact(facts, name, FactState::Good, "memory for checkpoints gets them where the kernel finds some");
}

void probe_address(const std::string &node_addr, const std::string &wanted, Facts &facts) {
    const char *name = "network";
    auto addresses = transport::resolve(node_addr);
    if (!addresses || addresses->empty())
        return add_fact(facts, name, FactState::Bad,
                        "NodeAddr " + node_addr + " can not be resolved: " + addresses.status().message(),
                        "check the node's NodeAddr in slurm.conf, and the name service of this node");
    std::vector<Interface> all = read_interfaces();
    const Interface *found = interface_of(all, *addresses);
    if (!found)
        return add_fact(facts, name, FactState::Bad,
                        "no interface of this node has its NodeAddr " + node_addr +
                            ": other nodes can not reach it, and do not believe it",
                        "make NodeAddr in slurm.conf an address of this node");
    if (!wanted.empty() && wanted != found->name)
        return add_fact(facts, name, FactState::Bad,
                        "NodeAddr " + node_addr + " is of " + found->name +
                            ", but links are accepted on network.interface = " + wanted + " alone",
                        "network.interface = \"" + found->name + "\", or none, in dlrover.toml");
    std::string text = "NodeAddr " + node_addr + " is of " + interface_text(*found);
    if (!found->up)
        return add_fact(facts, name, FactState::Bad, text + ", which is down", "bring the interface up");
    if (found->loopback)
        return add_fact(facts, name, FactState::Limited, text + ", which no other node reaches");
    if (const Interface *faster = faster_than(all, *found))
        return add_fact(
            facts, name, FactState::Limited,
            text + ", while " + interface_text(*faster) +
                ", is there: copies go the slow way, unless by RDMA",
            "make NodeAddr in slurm.conf an address of " + faster->name + ", if all nodes have it");
    add_fact(facts, name, FactState::Good, text);
}

void probe_credentials(transport::Credentials &credentials, Facts &facts) {
    const char *name = "munge", *change = "check that munged runs, and its clock and key";
    auto began = std::chrono::steady_clock::now();
    auto text = credentials.encode(std::vector<std::uint8_t>(32, 7));
    if (!text) return add_fact(facts, name, FactState::Bad, text.status().message(), change);
    auto voucher = credentials.decode(*text);
    if (!voucher) return add_fact(facts, name, FactState::Bad, voucher.status().message(), change);
    if (voucher->uid != ::geteuid())
        return add_fact(facts, name, FactState::Bad,
                        "munged takes the daemon for uid " + std::to_string(voucher->uid), change);
    auto us = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - began);
    add_fact(facts, name, FactState::Good,
             "makes and reads credentials (" + std::to_string(us.count() / 1000) + "." +
                 std::to_string(us.count() / 100 % 10) + " ms for both)");
}

}  // namespace dlrover::daemon

// SPDX-License-Identifier: Apache-2.0
// A daemon for adapters' ranks; prints its socket's path and serves until its standard input ends.
//   stored_daemon -- FOLDER TERM NUMBER STEP RANKS    sends all ranks to that checkpoint on storage
//   stored_daemon -- with-storage|without-storage     serves one rank, and says at the end what is sealed
//   stored_daemon -- together RANKS FOLDER            serves so many ranks of one node, each by a socket of
//   its
//                                                     own; at the end what they saved last goes to storage
#include <cstdio>
#include <memory>
#include <string>

#include "ckpt/checkpoint_folder.h"
#include "ckpt/storage_index.h"
#include "ckpt/storage_writer.h"
#include "tests/unit/lib_fake_daemon.h"

#define BOOST_TEST_MODULE stored_daemon
#include <boost/test/included/unit_test.hpp>

namespace {

using namespace dlrover;

void await_end() {
    std::fflush(stdout);
    while (std::getchar() != EOF) {
    }
}

void store(test::FakeDaemon &daemon, const std::string &folder, ckpt::Manifest &manifest) {
    auto [bytes, seal] = daemon.newest_object();
    auto *table = reinterpret_cast<const std::uint8_t *>(bytes.data() + seal.table_offset);
    ckpt::SealedObject object{
        std::span(bytes).first(seal.data_bytes), {table, seal.table_bytes}, seal.ledger};
    auto view = ckpt::ObjectTableView::parse(object.table);
    BOOST_REQUIRE(view.ok());
    manifest.lineage = view->identity().lineage;
    manifest.id = {view->identity().generation, view->identity().train_step};
    auto file = ckpt::write_storage_file(ckpt::CheckpointFolder(folder).data_folder(manifest.id), object);
    BOOST_REQUIRE_MESSAGE(file.ok(), file.status().to_string());
    manifest.ranks.push_back(*file);
}

void serve_together(std::uint32_t ranks, const std::string &folder) {
    std::vector<std::unique_ptr<test::FakeDaemon>> daemons;
    for (std::uint32_t i = 0; i < ranks; ++i) daemons.push_back(std::make_unique<test::FakeDaemon>());
    for (auto &daemon : daemons) std::printf("%s\n", daemon->socket_path().c_str());
    await_end();
    ckpt::Manifest manifest;
    for (auto &daemon : daemons) store(*daemon, folder, manifest);
    ckpt::CheckpointFolder checkpoints(folder);
    auto index = ckpt::write_storage_index(checkpoints.data_folder(manifest.id), manifest.ranks);
    BOOST_REQUIRE_MESSAGE(index.ok(), index.status().to_string());
    manifest.index = *index;
    BOOST_REQUIRE(checkpoints.publish(manifest).ok());
}

}  // namespace

BOOST_AUTO_TEST_CASE(serves) {
    auto &suite = boost::unit_test::framework::master_test_suite();
    BOOST_REQUIRE((suite.argc == 2 || suite.argc == 4 || suite.argc == 6));
    auto number = [&](int i) { return std::stoull(suite.argv[i]); };
    if (suite.argc == 4) return serve_together(static_cast<std::uint32_t>(number(2)), suite.argv[3]);
    dlrover::test::FakeDaemon daemon;
    if (suite.argc == 6)
        daemon.restore_from(suite.argv[1], {number(2), number(3)}, number(4),
                            static_cast<std::uint32_t>(number(5)));
    else
        daemon.storage_told = suite.argv[1] == std::string("with-storage");
    std::printf("%s\n", daemon.socket_path().c_str());
    await_end();
    for (const auto &seal : daemon.sealed())
        std::printf("step %ju %s\n", static_cast<std::uintmax_t>(seal.train_step),
                    seal.to_storage ? "to storage" : "in memory");
}

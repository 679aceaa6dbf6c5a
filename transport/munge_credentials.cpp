// SPDX-License-Identifier: Apache-2.0
#include "transport/munge_credentials.h"

#include <munge.h>

#include <cstdlib>

namespace dlrover::transport {
namespace {

struct ContextDeleter {
    void operator()(munge_ctx_t ctx) const { ::munge_ctx_destroy(ctx); }
};
using Context = std::unique_ptr<munge_ctx, ContextDeleter>;
struct FreeDeleter {
    void operator()(void *p) const { std::free(p); }
};

Status failure(munge_err_t error, munge_ctx_t ctx, const char *what) {
    const char *detail = ctx ? ::munge_ctx_strerror(ctx) : nullptr;
    std::string text = std::string(what) + ": " + (detail ? detail : ::munge_strerror(error));
    switch (error) {
        case EMUNGE_SOCKET:
        case EMUNGE_TIMEOUT:
        case EMUNGE_SNAFU:
        case EMUNGE_NO_MEMORY:
            return Status(Code::unavailable, text);
        default:
            return Status(Code::permission_denied, text);
    }
}

class MungeCredentials final : public Credentials {
  public:
    explicit MungeCredentials(MungeOptions options) : options_(std::move(options)) {}

    Result<std::string> encode(std::span<const std::uint8_t> payload) override {
        auto context = make_context();
        if (!context) return context.take_status();
        munge_ctx_t ctx = context->get();
        // The payload holds half of a key: encryption is asked for, whatever the site's default is.
        bool set = ::munge_ctx_set(ctx, MUNGE_OPT_CIPHER_TYPE, MUNGE_CIPHER_AES128) == EMUNGE_SUCCESS &&
                   ::munge_ctx_set(ctx, MUNGE_OPT_MAC_TYPE, MUNGE_MAC_SHA256) == EMUNGE_SUCCESS &&
                   ::munge_ctx_set(ctx, MUNGE_OPT_UID_RESTRICTION,
                                   static_cast<uid_t>(options_.readable_by)) == EMUNGE_SUCCESS;
        if (!set) return Status(Code::unavailable, "libmunge does not take the options of a credential");
        char *raw = nullptr;
        munge_err_t error = ::munge_encode(&raw, ctx, payload.data(), static_cast<int>(payload.size()));
        std::unique_ptr<char, FreeDeleter> text(raw);
        if (error != EMUNGE_SUCCESS) return failure(error, ctx, "munge_encode");
        return std::string(text.get());
    }

    Result<Voucher> decode(const std::string &credential) override {
        auto context = make_context();
        if (!context) return context.take_status();
        munge_ctx_t ctx = context->get();
        void *raw = nullptr;
        int size = 0;
        uid_t uid = static_cast<uid_t>(-1);
        gid_t gid = static_cast<gid_t>(-1);
        munge_err_t error = ::munge_decode(credential.c_str(), ctx, &raw, &size, &uid, &gid);
        std::unique_ptr<void, FreeDeleter> owned(raw);
        // libmunge hands the payload out with EXPIRED, REWOUND and REPLAYED too: only SUCCESS counts.
        if (error != EMUNGE_SUCCESS) return failure(error, ctx, "munge_decode");
        if (!protected_well(ctx))
            return Status(Code::permission_denied, "the credential is not encrypted for one user");
        auto *bytes = static_cast<const std::uint8_t *>(raw);
        return Voucher{std::vector<std::uint8_t>(bytes, bytes + (size > 0 ? size : 0)), uid, gid};
    }

  private:
    Result<Context> make_context() const {
        Context context(::munge_ctx_create());
        if (!context) return Status(Code::resource_exhausted, "no memory for a MUNGE context");
        if (!options_.socket.empty() &&
            ::munge_ctx_set(context.get(), MUNGE_OPT_SOCKET, options_.socket.c_str()) != EMUNGE_SUCCESS)
            return Status(Code::unavailable, "libmunge does not take the socket " + options_.socket);
        return context;
    }

    bool protected_well(munge_ctx_t ctx) const {
        int cipher = MUNGE_CIPHER_NONE;
        uid_t restricted = static_cast<uid_t>(-1);
        return ::munge_ctx_get(ctx, MUNGE_OPT_CIPHER_TYPE, &cipher) == EMUNGE_SUCCESS &&
               cipher != MUNGE_CIPHER_NONE &&
               ::munge_ctx_get(ctx, MUNGE_OPT_UID_RESTRICTION, &restricted) == EMUNGE_SUCCESS &&
               restricted == static_cast<uid_t>(options_.readable_by);
    }

    MungeOptions options_;
};

}  // namespace

Result<std::unique_ptr<Credentials>> make_munge_credentials(const MungeOptions &options) {
    if (!options.socket.empty() && options.socket.front() != '/')
        return Status(Code::invalid_argument, "the path of munged's socket must begin with /");
    return std::unique_ptr<Credentials>(new MungeCredentials(options));
}

}  // namespace dlrover::transport

// Runs a packed plan on inputs from files: `run_plan PLAN FOLDER [DRIVER]`, as run_plan.c does.
//
//     c++ -std=c++17 -Ibackends/native/source examples/native/run_plan.cpp -Lbuild -lcuts_run -o run_plan
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuts_run.h"

namespace {

constexpr std::align_val_t alignment{64};

void check(cuts_status status) {
    if (status != CUTS_OK) throw std::runtime_error(std::string(cuts_status_name(status)) + ": " + cuts_last_error());
}

// Host memory of a tensor.
class Memory {
public:
    explicit Memory(std::size_t nbytes) : data_(::operator new(nbytes + 1, alignment)) {
    }
    Memory(Memory &&other) noexcept : data_(other.data_) {
        other.data_ = nullptr;
    }
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;
    ~Memory() {
        ::operator delete(data_, alignment);
    }
    void *data() const {
        return data_;
    }

private:
    void *data_;
};

// A plan with one session.
class Plan {
public:
    Plan(const std::string &path, const char *driver) {
        cuts_options options;
        cuts_plan *plan = nullptr;
        cuts_session *session = nullptr;
        cuts_options_default(&options);
        options.library = driver;
        check(cuts_plan_open(path.c_str(), &options, &plan));
        plan_.reset(plan);
        check(cuts_session_create(plan, &session));
        session_.reset(session);
    }

    // Descriptions of the tensors of a role.
    std::vector<cuts_tensor_info> tensors(cuts_role role) const {
        cuts_plan_info info;
        check(cuts_plan_describe(plan_.get(), &info));
        std::vector<cuts_tensor_info> found(role == CUTS_INPUT ? info.inputs : info.outputs);
        for (std::uint32_t n = 0; n < found.size(); n++) check(cuts_plan_tensor(plan_.get(), role, n, &found[n]));
        return found;
    }

    void run(const std::vector<cuts_tensor> &inputs, const std::vector<cuts_tensor> &outputs) {
        check(cuts_session_run(session_.get(), inputs.data(), static_cast<std::uint32_t>(inputs.size()), outputs.data(),
                               static_cast<std::uint32_t>(outputs.size()), nullptr));
    }

private:
    struct Close {
        void operator()(cuts_plan *plan) const {
            cuts_plan_close(plan);
        }
        void operator()(cuts_session *session) const {
            cuts_session_destroy(session);
        }
    };
    std::unique_ptr<cuts_plan, Close> plan_;
    std::unique_ptr<cuts_session, Close> session_;
};

// A dense tensor over memory.
cuts_tensor view(const cuts_tensor_info &info, const Memory &memory) {
    return {memory.data(), {1, 0}, info.ndim, info.dtype, const_cast<std::int64_t *>(info.shape), nullptr, 0};
}

std::string path_of(const std::string &folder, const cuts_tensor_info &info) {
    return folder + "/" + info.name + ".bin";
}

void run(const std::string &path, const std::string &folder, const char *driver) {
    Plan plan(path, driver);
    std::vector<Memory> memory;
    std::vector<cuts_tensor> inputs, outputs;
    for (const auto &info : plan.tensors(CUTS_INPUT)) {
        memory.emplace_back(info.nbytes);
        std::ifstream file(path_of(folder, info), std::ios::binary);
        if (!file.read(static_cast<char *>(memory.back().data()), static_cast<std::streamsize>(info.nbytes)))
            throw std::runtime_error("cannot read " + path_of(folder, info));
        inputs.push_back(view(info, memory.back()));
    }
    const auto results = plan.tensors(CUTS_OUTPUT);
    for (const auto &info : results) {
        memory.emplace_back(info.nbytes);
        outputs.push_back(view(info, memory.back()));
    }
    plan.run(inputs, outputs);
    for (std::size_t n = 0; n < results.size(); n++)
        std::ofstream(path_of(folder, results[n]), std::ios::binary)
            .write(static_cast<char *>(outputs[n].data), static_cast<std::streamsize>(results[n].nbytes));
}

}  // namespace

int main(int count, char **words) {
    if (count < 3) {
        std::cerr << "usage: " << words[0] << " PLAN FOLDER [DRIVER]\n";
        return 2;
    }
    try {
        run(words[1], words[2], count > 3 ? words[3] : nullptr);
    } catch (const std::exception &error) {
        std::cerr << error.what() << "\n";
        return 1;
    }
    return 0;
}

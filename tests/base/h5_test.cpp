#include "base/h5.h"

#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "catch.h"

namespace fs = std::filesystem;
using kvlab::Error;
using kvlab::h5::Element;
using kvlab::h5::File;

namespace {

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "kvlab_h5_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path_); }
  fs::path operator/(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

std::string message(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("h5: numbers, texts and attributes come back as written", "[h5]") {
  const Folder folder;
  const fs::path path = folder / "a.h5";
  const double nan = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> large(200 * 300);
  std::iota(large.begin(), large.end(), 0.0);
  const std::vector<uint16_t> half = {0x3C00, 0xC000, 0x7BFF};  // 1, -2, 65504
  const std::vector<std::string> words = {"", "σ", "a longer text", std::string(70000, 'x')};
  // As many as a summary of a large sweep has rows: more than a dataset without chunks holds.
  std::vector<std::string> many;
  for (int i = 0; i < 30000; ++i) many.push_back(std::to_string(i));
  {
    File file = File::create(path);
    file.write("/numbers/double", large.data(), {200, 300});
    file.write("/numbers/one", &nan, {});
    file.write<int32_t>("/numbers/int32", {1, -2, 3});
    file.write<uint8_t>("/numbers/uint8", {0, 255});
    file.write<int64_t>("/numbers/none", {});
    file.write_float16("/numbers/half", half.data(), {3});
    file.write_text("/text", "ünïcode");
    file.write_texts("/words", words);
    file.write_texts("/no_words", {});
    file.write_texts("/many_words", many);
    file.set_attribute("/", "schema", "kvlab.test/1");
    file.set_attribute("/", "schema", "kvlab.test/2");
    file.set_attribute("/numbers", "count", int64_t{7});
    file.set_attribute("/numbers", "share", 0.25);
    file.set_attribute("/numbers", "span", std::vector<int64_t>{3, 9});
    file.set_attribute("/numbers", "words", words);
    file.set_attribute("/numbers", "no_words", std::vector<std::string>{});
    file.close();
  }
  const File file = File::open(path);
  CHECK(file.children("/") ==
        std::vector<std::string>{"many_words", "no_words", "numbers", "text", "words"});
  CHECK(file.is_group("/numbers"));
  CHECK_FALSE(file.is_group("/text"));
  CHECK(file.exists("/numbers/int32"));
  CHECK_FALSE(file.exists("/nothing/at/all"));
  CHECK(file.read<double>("/numbers/double") == large);
  CHECK(file.info("/numbers/double").shape == std::vector<int64_t>{200, 300});
  CHECK(file.info("/numbers/double").stored_bytes < large.size() * sizeof(double) / 2);
  CHECK(std::isnan(file.read<double>("/numbers/one").at(0)));
  CHECK(file.info("/numbers/one").shape.empty());
  CHECK(file.read<int64_t>("/numbers/int32") == std::vector<int64_t>{1, -2, 3});
  CHECK(file.read<uint8_t>("/numbers/uint8") == std::vector<uint8_t>{0, 255});
  CHECK(file.read<int64_t>("/numbers/none").empty());
  CHECK(file.info("/numbers/half").element == Element{Element::Kind::real, 2});
  CHECK(file.info("/numbers/half").element.name() == "float16");
  CHECK(file.read<float>("/numbers/half") == std::vector<float>{1, -2, 65504});
  std::vector<uint16_t> raw(2);
  file.read_slice_raw("/numbers/half", {1}, {2}, raw.data());
  CHECK(raw == std::vector<uint16_t>{0xC000, 0x7BFF});
  CHECK(file.read_text("/text") == "ünïcode");
  CHECK(file.read_texts("/words") == words);
  CHECK(file.read_texts("/many_words") == many);
  CHECK(file.read_texts("/no_words").empty());
  CHECK(file.attribute<std::string>("/", "schema") == "kvlab.test/2");
  CHECK(file.attribute<int64_t>("/numbers", "count") == 7);
  CHECK(file.attribute<double>("/numbers", "share") == 0.25);
  CHECK(file.attribute<std::vector<int64_t>>("/numbers", "span") == std::vector<int64_t>{3, 9});
  CHECK(file.attribute<std::vector<std::string>>("/numbers", "words") == words);
  CHECK(file.attribute<std::vector<std::string>>("/numbers", "no_words").empty());
  CHECK(file.attribute_or<int64_t>("/numbers", "absent", 5) == 5);
  CHECK(file.attribute_names("/numbers").size() == 5);
  std::vector<double> block(4);
  file.read_slice("/numbers/double", {198, 5}, {2, 2}, block.data());
  CHECK(block == std::vector<double>{59405, 59406, 59705, 59706});
}

TEST_CASE("h5: an error names the file, the object and the reason", "[h5]") {
  const Folder folder;
  const fs::path path = folder / "a.h5";
  {
    File file = File::create(path);
    file.write("/x", std::vector<double>(30000, 1.5));
    file.set_attribute("/x", "unit", "bits");
    file.close();
  }
  CHECK(has(message([&] { File::open(folder / "b.h5"); }), "b.h5: no such file"));
  CHECK(has(message([&] { File::open(folder / ""); }), "is a folder"));
  std::ofstream(folder / "text.h5") << "not at all";
  CHECK(has(message([&] { File::open(folder / "text.h5"); }), "text.h5: not an HDF5 file"));
  CHECK(has(message([&] { File::create(folder / "no/such/folder.h5"); }),
            "cannot be created: No such file or directory"));
  CHECK(message([&] { File::create(folder / "no/such/folder.h5", "r.h5"); }) ==
        "r.h5: cannot be created: No such file or directory");
  CHECK(message([&] { File::edit(folder / "b.h5", "r.h5"); }) == "r.h5: no such file");
  const File file = File::open(path);
  CHECK(has(message([&] { file.read<double>("/y"); }), "a.h5: /y is missing"));
  CHECK(has(message([&] { file.read_text("/x"); }), "/x should hold strings, found float64"));
  CHECK(has(message([&] { file.attribute<double>("/x", "unit"); }),
            "attribute 'unit' of /x should be a number, found string"));
  CHECK(has(message([&] { file.attribute<double>("/x", "none"); }), "has no attribute 'none'"));
  double one = 0;
  CHECK(has(message([&] { file.read_slice("/x", {30000}, {1}, &one); }), "has 30000 entries"));
  fs::copy_file(path, folder / "short.h5");
  fs::resize_file(folder / "short.h5", fs::file_size(path) / 2);
  CHECK(has(message([&] { File::open(folder / "short.h5"); }), "short.h5: truncated"));
}

TEST_CASE("h5: a file locked by another program is named as such", "[h5]") {
  const Folder folder;
  const fs::path path = folder / "a.h5";
  File::create(path).close();
  std::FILE* other = std::fopen(path.c_str(), "r+");
  REQUIRE(flock(fileno(other), LOCK_EX) == 0);
  CHECK(has(message([&] { File::open(path); }), "a.h5: locked by another program"));
  std::fclose(other);
  CHECK_NOTHROW(File::open(path));
}

TEST_CASE("h5: flipped bytes are found when they are read", "[h5]") {
  const Folder folder;
  const fs::path path = folder / "a.h5";
  {
    File file = File::create(path);
    std::vector<double> noise(30000);
    for (size_t i = 0; i < noise.size(); ++i) noise[i] = std::sin(static_cast<double>(i * i));
    file.write("/x", noise);
    file.close();
  }
  std::fstream bytes(path, std::ios::in | std::ios::out | std::ios::binary);
  bytes.seekp(static_cast<std::streamoff>(fs::file_size(path) / 2));
  bytes.write("????", 4);
  bytes.close();
  CHECK(has(message([&] { File::open(path).read<double>("/x"); }), "the file is damaged"));
}

TEST_CASE("h5: groups are copied between files, and bytes behind a file do no harm", "[h5]") {
  const Folder folder;
  {
    File file = File::create(folder / "a.h5");
    file.write("/cells/a/x", std::vector<double>{1, 2});
    file.set_attribute("/cells/a", "status", "complete");
    file.close();
  }
  std::ofstream(folder / "a.h5", std::ios::binary | std::ios::app) << "trailer";
  const File source = File::open(folder / "a.h5");
  File target = File::create(folder / "b.h5");
  target.copy_from(source, "/cells/a", "/cells/a");
  CHECK(target.read<double>("/cells/a/x") == std::vector<double>{1, 2});
  CHECK(target.attribute<std::string>("/cells/a", "status") == "complete");
}

TEST_CASE("h5: an existing file is changed in place", "[h5]") {
  const Folder folder;
  const fs::path path = folder / "a.h5";
  {
    File file = File::create(path);
    file.write("/b/x", std::vector<double>{1, 2});
    file.write("/a", std::vector<double>{3});
    file.set_attribute("/a", "unit", "bits");
    file.set_attribute("/", "schema", "old");
    file.close();
  }
  {
    File file = File::edit(path);
    const std::vector<kvlab::h5::Object> objects = file.objects_below("/");
    REQUIRE(objects.size() == 3);
    CHECK(objects[0].path == "/a");
    CHECK(objects[0].has_attributes);
    CHECK(objects[1].path == "/b");
    CHECK(objects[1].is_group);
    CHECK(objects[2].path == "/b/x");
    CHECK_FALSE(objects[2].has_attributes);
    CHECK(file.read_raw("/b/x").bytes.size() == 2 * sizeof(double));
    file.remove("/b");
    file.remove_attribute("/", "schema");
    file.close();
  }
  const File file = File::open(path);
  CHECK(file.children("/") == std::vector<std::string>{"a"});
  CHECK_FALSE(file.has_attribute("/", "schema"));
}

TEST_CASE("h5: a file that cannot grow is one sentence, and the program ends well", "[h5]") {
  const Folder folder;
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{200000, 200000};
    setrlimit(RLIMIT_FSIZE, &limit);
    std::string text;
    {
      File file = File::create(folder / "a.h5");
      std::vector<double> noise(50000);
      for (size_t i = 0; i < noise.size(); ++i) noise[i] = std::sin(static_cast<double>(i * i));
      text = message([&] {
        for (int i = 0; i < 9; ++i) file.write("/group/x" + std::to_string(i), noise);
        file.close();
      });
    }
    std::exit(has(text, "a.h5: ") && has(text, "cannot be written: File too large") ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("h5: threads may use it at once", "[h5]") {  // D91
  const Folder folder;
  const auto work = [&](const std::string& name) {
    for (int i = 0; i < 20; ++i) {
      File file = File::create(folder / name);
      file.write("/x", std::vector<double>(5000, i));
      file.close();
      if (File::open(folder / name).read<double>("/x").back() != i) throw Error("wrong value");
      if (message([&] { File::open(folder / "absent.h5"); }) == "no error") throw Error("opened");
    }
  };
  std::thread first(work, "a.h5");
  std::thread second(work, "b.h5");
  first.join();
  second.join();
  CHECK(File::open(folder / "a.h5").read<double>("/x").size() == 5000);
}

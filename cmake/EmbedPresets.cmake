# Writes OUTPUT, one C++ file with the text of every method file in core/method/presets, so that the library needs no
# files at run time.
file(GLOB _files ${SOURCE_DIR}/core/method/presets/*.yaml)
list(SORT _files)
set(_text "#include \"method/preset_texts.h\"\n\nnamespace kvlab::method {\n\
const std::vector<PresetText>& preset_texts() {\n  static const std::vector<PresetText> texts = {\n")
foreach(_file IN LISTS _files)
  get_filename_component(_id ${_file} NAME_WE)
  file(READ ${_file} _yaml)
  string(APPEND _text "      {\"${_id}\", R\"yaml(${_yaml})yaml\"},\n")
endforeach()
string(APPEND _text "  };\n  return texts;\n}\n}  // namespace kvlab::method\n")
set(_old "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} _old)
endif()
if(NOT "${_old}" STREQUAL "${_text}")
  file(WRITE ${OUTPUT} "${_text}")
endif()
